"""The settings of a workload: what they say of themselves, and which of them make none for any server."""

from __future__ import annotations

import json
import math

import pytest

from loadtest.spec import Arrival, WorkloadError, WorkloadSpec, check
from loadtest.traces import parse_trace, read_trace

TIMED = parse_trace(b"arrival_ms,input_length,output_length\n0,20,5\n500,30,6\n", "mine")
BLOCKS = read_trace("sharegpt-multiturn")


def test_all_settings_go_into_the_report() -> None:
    written = json.loads(json.dumps(WorkloadSpec(trace=read_trace("azure-conv")).as_json()))
    assert (written["trace"], written["input_len"], written["output_len"]) == ("azure-conv", "trace", "trace")
    assert len(written["trace_sha256"]) == 64
    without = WorkloadSpec(arrival=Arrival.CONSTANT, num_requests=4).as_json()
    assert (without["trace"], without["input_len"], without["output_len"]) == (None, "512", "128")
    assert (without["arrival"], without["num_requests"], without["seed"]) == ("constant", 4, 0)


@pytest.mark.parametrize(
    ("spec", "rate", "message"),
    [
        (WorkloadSpec(num_requests=3), None, "at what rate .* or how many users"),
        (WorkloadSpec(), 1.0, "how many requests"),
        (WorkloadSpec(num_requests=3, sessions=2), 1.0, "not both"),
        (WorkloadSpec(num_requests=0), 1.0, "start at 1"),
        (WorkloadSpec(num_requests=3, n=0), 1.0, "start at 1"),
        (WorkloadSpec(num_requests=3), 0.0, "above 0"),
        (WorkloadSpec(num_requests=3, ramp_to=-1.0), 1.0, "above 0"),
        (WorkloadSpec(num_requests=3, duration_s=math.inf), 1.0, "above 0"),
        (WorkloadSpec(num_requests=3, leave_share=-0.1), 1.0, "below 0"),
        (WorkloadSpec(num_requests=3, leave_share=0.6, slow_share=0.6), 1.0, "than there are"),
        (WorkloadSpec(num_requests=3, prefix_len=5), 1.0, "both a number and a length"),
        (WorkloadSpec(num_requests=3, input_len="trace"), 1.0, "Prompt length: there is no trace"),
        (WorkloadSpec(num_requests=3, output_len="0"), 1.0, "Answer length: '0' must be"),
        (WorkloadSpec(num_requests=3, turns="x"), 1.0, "Turns: 'x' must be"),
        (WorkloadSpec(num_requests=3, think_s="-1"), 1.0, "Think time: '-1' must be"),
        (WorkloadSpec(num_requests=3, arrival=Arrival.TRACE), None, "no times of a trace"),
        (WorkloadSpec(num_requests=3, arrival=Arrival.POISSON), None, "that are poisson need a rate"),
        (WorkloadSpec(num_requests=3, arrival=Arrival.POISSON, burstiness=0.5), 1.0, "is of gamma"),
        (WorkloadSpec(trace=TIMED, trace_scale=2.0), 1.0, "not both"),
        (WorkloadSpec(trace=TIMED, ramp_to=2.0), 1.0, "no ramp"),
        (WorkloadSpec(trace=BLOCKS, turns="2", num_requests=3), 1.0, "its own turns or shared prompts"),
        (WorkloadSpec(trace=BLOCKS, num_prefixes=1, prefix_len=5), 1.0, "no further prefixes"),
        (WorkloadSpec(num_requests=3, max_concurrency=2, arrival=Arrival.CLOSED), 1.0, "has no rate"),
        (WorkloadSpec(num_requests=3, max_concurrency=2, return_s="5"), None, "a think time instead"),
        (WorkloadSpec(num_requests=3, max_concurrency=2, ramp_to=5.0), None, "neither burstiness nor a ramp"),
    ],
)  # fmt: skip
def test_what_contradicts_or_cannot_be_read(spec: WorkloadSpec, rate: float | None, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        check(spec, rate)
