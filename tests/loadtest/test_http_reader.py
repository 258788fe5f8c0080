"""HTTP responses as their bytes come, in whatever pieces the network makes of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.drivers.http_reader import BadHttpError, ResponseReader

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def read(reader: ResponseReader, data: bytes, cuts: set[int]) -> bytes:
    """Feed it in the pieces that the cuts make."""
    ends = [*sorted(cut for cut in cuts if 0 < cut < len(data)), len(data)]
    starts = [0, *ends[:-1]]
    return b"".join(reader.feed(data[start:end]) for start, end in zip(starts, ends, strict=True))


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), st.sets(st.integers(1, 400)))
def test_a_chunked_body_is_whole_however_it_is_cut(parts: list[bytes], cuts: set[int]) -> None:
    reader = ResponseReader()
    data = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(*parts)
    assert read(reader, data, cuts) == b"".join(parts)
    assert reader.is_over
    assert reader.head is not None and reader.head.keeps_alive


@given(st.binary(max_size=60), st.sets(st.integers(1, 200)))
def test_a_body_of_a_given_length_is_whole_however_it_is_cut(body: bytes, cuts: set[int]) -> None:
    reader = ResponseReader()
    assert read(reader, HEAD + b"content-length: %d\r\n\r\n%b" % (len(body), body), cuts) == body
    assert reader.is_over


def test_what_has_come_of_a_chunk_is_given_at_once() -> None:
    reader = ResponseReader()
    reader.feed(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    assert reader.feed(b"6\r\nabc") == b"abc"
    assert reader.feed(b"def") == b"def"
    assert reader.feed(b"\r") == b""
    assert reader.feed(b"\n1\r\ng\r\n") == b"g"
    assert not reader.is_over


def test_a_trailer_and_the_extensions_of_chunks_are_passed_over() -> None:
    reader = ResponseReader()
    body = reader.feed(HEAD + b"Transfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\nx-checksum: 1\r\n\r\n")
    assert body == b"abc"
    assert reader.is_over


def test_an_interim_response_is_not_the_answer() -> None:
    reader = ResponseReader()
    reader.feed(b"HTTP/1.1 100 Continue\r\n\r\n" + b"HTTP/1.1 204 No Content\r\n\r\n")
    assert reader.head is not None and reader.head.status == 204
    assert reader.is_over


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    reader = ResponseReader()
    assert reader.feed(HEAD + b"\r\nabc") == b"abc"
    assert not reader.is_over
    reader.feed_end()
    assert reader.is_over


@pytest.mark.parametrize(
    "rest", [b"content-length: 4\r\n\r\nabc", b"transfer-encoding: chunked\r\n\r\n3\r\nabc"]
)
def test_a_body_that_is_cut_off_is_told_from_one_that_ends(rest: bytes) -> None:
    reader = ResponseReader()
    assert reader.feed(HEAD + rest) == b"abc"
    with pytest.raises(BadHttpError):
        reader.feed_end()


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        HEAD + b"content-length: -1\r\n\r\n",
        HEAD + b"transfer-encoding: chunked\r\n\r\nxyz\r\n",
        HEAD + b"transfer-encoding: chunked\r\n\r\n-3\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"a" * 70_000,
    ],
)
def test_what_is_no_http_is_refused(data: bytes) -> None:
    with pytest.raises(BadHttpError):
        ResponseReader().feed(data)


@pytest.mark.parametrize(
    ("head", "keeps_alive"),
    [
        (b"HTTP/1.1 204 -\r\n\r\n", True),
        (b"HTTP/1.1 204 -\r\nConnection: close\r\n\r\n", False),
        (b"HTTP/1.0 204 -\r\n\r\n", False),
        (b"HTTP/1.0 204 -\r\nConnection: keep-alive\r\n\r\n", True),
    ],
)
def test_whether_the_connection_can_be_used_again(head: bytes, keeps_alive: bool) -> None:
    reader = ResponseReader()
    reader.feed(head)
    assert reader.head is not None and reader.head.keeps_alive is keeps_alive
