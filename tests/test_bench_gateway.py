"""The measurement of the gateway: its parts run over real processes, and lose nothing."""

from __future__ import annotations

import json

import pytest

from benchmarks.gateway import stages
from benchmarks.gateway.carrying import LostError, Window, _summary, _tokens_per_event
from benchmarks.gateway.latency import delays_s
from benchmarks.gateway.measuring import measure
from benchmarks.gateway.scales import QUICK
from benchmarks.gateway.sink import Arrival, Count
from engine.scripted_words import Words


def test_a_quick_run_over_real_processes(capsys: pytest.CaptureFixture[str]) -> None:
    found = measure(("carry", "latency", "ramp"), QUICK)
    assert [one.kind for one in found.carried] == ["sse", "ws"]
    assert all(one.ratio > 0 and one.tokens_per_event >= 1 for one in found.carried)
    assert all(0 <= one.p50_ms <= one.p99_ms <= one.max_ms for one in found.latencies)
    assert found.ramp is not None
    assert (found.ramp.num_streams, found.ramp.num_ended) == (QUICK.ramp_streams, 0)
    json.dumps(found.as_json())
    found.print()
    assert "tokens/s of a core" in capsys.readouterr().out


def test_stages_are_measured_on_the_same_tokens() -> None:
    found = stages.measure(num_streams=4, rounds=1)
    assert min(found.ipc_decode_us, found.detokenize_us, found.encode_us, found.socket_us) > 0


def test_a_token_that_did_not_come_is_noticed() -> None:
    event = b'data: {"choices":[{"delta":{"content":" one two"}}]}\n\n'
    count = Count(0.0, 1, len(event), 1, 0, [[Arrival(0.0, event[:30]), Arrival(0.1, event[30:])]])
    assert _tokens_per_event(count, 2) == 2
    with pytest.raises(LostError, match="2 of 3 tokens"):
        _tokens_per_event(count, 3)


def test_rounds_in_which_the_gateway_lagged_are_left_out() -> None:
    floor = Window(100.0, 10.0, 0.1, 200.0)
    found = [
        (Window(100.0, us, 0.1, 200.0), floor, per_event) for us, per_event in ((20.0, 1.0), (90.0, 3.0))
    ]
    carried = _summary("sse", 4, found)
    assert (carried.ratio, carried.tokens_per_event, carried.num_lagging) == (2.0, 1.0, 1)
    assert _summary("sse", 4, found[1:]).ratio == 9.0


def test_latency_is_read_off_the_words() -> None:
    words = Words.of({f"Ġ{chr(97 + i)}{chr(97 + j)}": 26 * i + j for i in range(26) for j in range(26)})
    emitted_s, came_s = 1.0, 1.0123
    text = words.texts[list(words.token_ids).index(words.token_id(emitted_s, 0))]
    arrival = Arrival(came_s, b'data: {"choices":[{"text":"%b"}]}\n\n' % text.encode())
    numbers = {text: index for index, text in enumerate(words.texts)}
    ((at_s, delay_s),) = delays_s([arrival], words, numbers)
    assert at_s == came_s
    assert delay_s == pytest.approx(0.0123, abs=2e-4)
