"""WebSocket frames, beside another implementation of the protocol."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame
from websockets.frames import Opcode as TheirOpcode

from loadtest.drivers.frames import BadFrameError, FrameReader, Opcode, accept_of, frame


def their_frame(opcode: int, payload: bytes, *, is_last: bool = True) -> bytes:
    return Frame(TheirOpcode(opcode), payload, fin=is_last).serialize(mask=False)


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=6), st.sets(st.integers(1, 2000)))
def test_messages_are_whole_however_they_are_cut(payloads: list[bytes], cuts: set[int]) -> None:
    data = b"".join(their_frame(Opcode.TEXT, payload) for payload in payloads)
    reader, at = FrameReader(), 0
    found: list[bytes] = []
    for cut in [*sorted(cut for cut in cuts if cut < len(data)), len(data)]:
        found += reader.feed(data[at:cut]).messages
        at = cut
    assert found == payloads


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536, 100_003])
def test_what_is_sent_is_masked_and_read_as_it_was(size: int) -> None:
    payload = bytes(at % 251 for at in range(size))
    sent = frame(Opcode.TEXT, payload, b"\x01\x80\xff\x00")
    assert sent[1] & 0x80
    reader = _read_by_them(sent)
    assert reader.data == payload
    assert reader.opcode == Opcode.TEXT


def _read_by_them(data: bytes) -> Frame:
    from websockets.streams import StreamReader

    stream = StreamReader()
    stream.feed_data(data)
    parsing = Frame.parse(stream.read_exact, mask=True)
    try:
        while True:
            next(parsing)
    except StopIteration as done:
        found: Frame = done.value
        return found


def test_a_message_in_fragments_with_a_ping_in_between() -> None:
    came = FrameReader().feed(
        their_frame(Opcode.TEXT, b"a", is_last=False)
        + their_frame(Opcode.PING, b"there?")
        + their_frame(Opcode.MORE, b"", is_last=False)
        + their_frame(Opcode.MORE, b"b")
        + their_frame(Opcode.PONG, b"")
    )
    assert came.messages == [b"ab"]
    assert came.pings == [b"there?"]
    assert came.close_code is None


@pytest.mark.parametrize(("payload", "code"), [(b"\x03\xf5", 1013), (b"", 1005)])
def test_the_servers_close_is_told_with_its_code(payload: bytes, code: int) -> None:
    assert FrameReader().feed(their_frame(Opcode.CLOSE, payload)).close_code == code


@pytest.mark.parametrize(
    "data",
    [
        frame(Opcode.TEXT, b"masked", b"mask"),
        their_frame(Opcode.MORE, b"of nothing"),
        their_frame(Opcode.TEXT, b"a", is_last=False) + their_frame(Opcode.TEXT, b"b"),
        b"\xc1\x00",  # a reserved bit
        b"\x83\x00",  # an opcode that is none
        b"\x81\x7f" + (1 << 40).to_bytes(8),
    ],
)
def test_what_breaks_the_protocol_is_refused(data: bytes) -> None:
    with pytest.raises(BadFrameError):
        FrameReader().feed(data)


def test_the_answer_to_the_key_is_that_of_the_rfc() -> None:
    assert accept_of(b"dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
