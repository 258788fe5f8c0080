"""Traces: those that come along, the formats of others, and what is refused."""

from __future__ import annotations

import gzip
import json
import statistics
from pathlib import Path

import pytest

from loadtest.traces import BUILT_IN, Trace, TraceError, TraceRow, parse_trace, read_trace


def parsed(text: str) -> Trace:
    return parse_trace(text.encode(), "mine")


@pytest.mark.parametrize(
    ("name", "num_rows", "input_len", "output_len", "span_s"),
    [
        ("mooncake-conversation", 12_031, 12_035, 343, 3_537),
        ("mooncake-synthetic", 3_993, 15_325, 149, 1_022),
        ("azure-conv", 19_366, 1_155, 211, 3_502),
        ("azure-code", 8_819, 2_048, 28, 3_436),
        ("sharegpt-multiturn", 300, 857, 653, 29),
        ("arxiv", 10_000, 2_573, 300, None),
        ("sharegpt", 10_000, 160, 339, None),
        ("alpaca", 10_000, 19, 59, None),
    ],
)
def test_what_comes_along(
    name: str, num_rows: int, input_len: int, output_len: int, span_s: int | None
) -> None:
    assert name in BUILT_IN
    trace = read_trace(name)
    assert (len(trace.rows), trace.unanswered) == (num_rows, 0)
    assert statistics.fmean(row.input_len for row in trace.rows) == pytest.approx(input_len, abs=0.6)
    assert statistics.fmean(row.output_len for row in trace.rows) == pytest.approx(output_len, abs=0.6)
    last_s = trace.rows[-1].at_s
    assert (last_s if last_s is None else round(last_s)) == span_s
    assert trace.has_times == (span_s is not None)


@pytest.mark.parametrize(
    ("name", "block_len", "hits"),
    [
        ("mooncake-conversation", 512, 0.366),
        ("mooncake-synthetic", 512, 0.640),
        ("sharegpt-multiturn", 16, 0.077),
    ],
)
def test_blocks_come_before_as_often_as_their_papers_say(name: str, block_len: int, hits: float) -> None:
    seen = set[int]()
    count = found = 0
    for row in read_trace(name).rows:
        assert row.block_len == block_len
        assert row.input_len // block_len <= len(row.block_ids) <= -(-row.input_len // block_len)
        found += sum(block in seen for block in row.block_ids)
        count += len(row.block_ids)
        seen.update(row.block_ids)
    assert found / count == pytest.approx(hits, abs=0.0005)


def test_mooncake_lines() -> None:
    lines = [
        {"timestamp": 3500, "input_length": 513, "output_length": 7, "hash_ids": [4, 5]},
        {"timestamp": 500, "input_length": 512, "output_length": 8, "hash_ids": [4]},
    ]
    trace = parsed("\n".join(json.dumps(line) for line in lines) + "\n")
    assert trace.rows == (TraceRow(0.0, 512, 8, (4,), 512), TraceRow(3.0, 513, 7, (4, 5), 512))


def test_lines_may_name_sessions_and_have_no_blocks() -> None:
    trace = parsed('{"input_length": 9, "output_length": 2, "session_id": 3}\n')
    assert trace.rows == (TraceRow(None, 9, 2, session="3"),)
    assert (trace.has_times, trace.has_blocks, trace.is_ordered) == (False, False, True)


@pytest.mark.parametrize(("num_ids", "block_len"), [((3, 1), 256), ((2, 0), 256), ((38, 13), 16)])
def test_the_length_of_blocks_follows_from_their_number(num_ids: tuple[int, int], block_len: int) -> None:
    trace = parsed(
        "\n".join(
            json.dumps({"input_length": tokens, "output_length": 1, "hash_ids": list(range(ids))})
            for tokens, ids in zip((600, 200), num_ids, strict=True)
        )
    )
    assert {row.block_len for row in trace.rows} == {block_len}


def test_our_own_csv_with_sessions() -> None:
    trace = parsed("session,arrival_ms,output_length,input_length\na,250,3,20\n,1250,4,30\n")
    assert trace.rows == (TraceRow(0.0, 20, 3, session="a"), TraceRow(1.0, 30, 4))


def test_burstgpt_as_it_was_first_published() -> None:
    """Requests that failed have no answer; they are left out and counted."""
    trace = parsed(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,0,1087,Conversation log\n"
        "118,GPT-4,417,276,693,API log\n"
    )
    assert trace.rows == (TraceRow(0.0, 472, 18), TraceRow(113.0, 417, 276))
    assert trace.unanswered == 1


def test_burstgpt_with_sessions() -> None:
    trace = parsed(
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "10.5,12,1.5,ChatGPT,100,20,120,Conversation log\n11.0,,2.0,GPT-4,30,5,35,API log\n"
    )
    assert trace.rows == (TraceRow(0.0, 100, 20, session="12"), TraceRow(0.5, 30, 5))


@pytest.mark.parametrize(
    "times",
    [
        ("2023-11-16 23:59:59.7500000", "2023-11-17 00:00:01.0000000"),
        ("2024-02-29 23:59:59.750000+00:00", "2024-03-01 00:00:01+00:00"),
        ("2024-05-10T00:00:00.5Z", "2024-05-10T00:00:01.75Z"),
    ],
)
def test_azure(times: tuple[str, str]) -> None:
    trace = parsed(f"TIMESTAMP,ContextTokens,GeneratedTokens\r\n{times[0]},374,44\r\n{times[1]},396,109\r\n")
    assert [(row.input_len, row.output_len) for row in trace.rows] == [(374, 44), (396, 109)]
    assert [row.at_s for row in trace.rows] == pytest.approx([0.0, 1.25])


def test_a_file_may_be_packed_and_may_start_with_a_byte_order_mark(tmp_path: Path) -> None:
    data = b"\xef\xbb\xbfinput_length,output_length\n5,3\n\n"
    (tmp_path / "plain.csv").write_bytes(data)
    (tmp_path / "packed").write_bytes(gzip.compress(data))
    plain, packed = read_trace(tmp_path / "plain.csv"), read_trace(str(tmp_path / "packed"))
    assert plain.rows == packed.rows == (TraceRow(None, 5, 3),)
    assert plain.sha256 == packed.sha256
    assert not plain.is_ordered


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must have the columns"),
        ("a,b\n1,2\n", "must have the columns"),
        ("input_length,output_length\n", "has no rows"),
        ("input_length,output_length\n3,0\n", "has no rows"),
        ("input_length,output_length\n0,3\n", "below 1"),
        ("input_length,output_length\n3,-1\n", "below 1"),
        ("input_length,output_length\n3,99999999999\n", "above 10,000,000"),
        ("input_length,output_length\n1\n", "line 2, must have whole numbers"),
        ("input_length,output_length\n1,2.5\n", "line 2, must have whole numbers"),
        ("arrival_ms,input_length,output_length\n0,1,2\nx,1,2\n", "line 3, must have .* a time"),
        ("arrival_ms,input_length,output_length\n0,1,2\nnan,1,2\n", "a time"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n", "line 2, must have .* a time"),
        (f"input_length,output_length\n{'1' * 200_000},2\n", "is no CSV file"),
        ('{"input_length": 5}\n', "line 1, is no row of a trace"),
        ('{"input_length": 5.5, "output_length": 2}\n', "line 1, is no row of a trace"),
        ('{"input_length": 5, "output_length": 2}\n{"input\n', "line 2, is no row of a trace"),
        ('{"input_length": 90, "output_length": 2, "hash_ids": [1, 2, 3, 4]}\n', "an id in hash_ids"),
        (
            '{"timestamp": 5, "input_length": 5, "output_length": 2}\n'
            '{"input_length": 5, "output_length": 2}\n',
            "rows without a time",
        ),
    ],
)  # fmt: skip
def test_what_is_no_trace(text: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        parsed(text)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="azure-conv"):
        read_trace("azure-chat")
    with pytest.raises(TraceError, match="cannot be read: Is a directory"):
        read_trace(tmp_path)
    packed = bytearray(gzip.compress(bytes(range(256)) * 9))
    for name, data in (
        ("bytes.csv", b"\xff\xfe"),
        ("text.gz", b"a,b"),
        ("short.gz", bytes(packed[:-9])),
        ("broken.gz", bytes(packed[:20]) + b"\xff" * 40 + bytes(packed[60:])),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(TraceError, match="is not a text file, gzipped or not"):
            read_trace(tmp_path / name)
