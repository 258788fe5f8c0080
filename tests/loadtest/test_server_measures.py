"""What servers say about themselves, by one set of names."""

from __future__ import annotations

import pytest

from loadtest.results import Series
from loadtest.server_measures import Page, series, wanted_lines

TIDEGATE = """\
# HELP tidegate_requests_running Requests in the batch.
# TYPE tidegate_requests_running gauge
tidegate_requests_running {running}
tidegate_requests_waiting 3.0
tidegate_requests_swapped 2.0
tidegate_requests_limited_total{{tenant="a",limit="rate"}} 9.0
tidegate_kv_blocks{{state="free",tier="host"}} 10.0
tidegate_kv_blocks{{state="cached",tier="host"}} 20.0
tidegate_kv_blocks{{state="in_use",tier="host"}} 30.0
tidegate_kv_blocks{{state="copying",tier="host"}} 4.0
tidegate_kv_blocks_kept{{tier="host"}} 1.0
tidegate_kv_transfer_bytes_total{{kind="swap_out"}} {swapped_out}
tidegate_kv_transfer_bytes_created{{kind="swap_out"}} 1.76e+09
tidegate_preemptions_total{{cause="pressure",kind="swap"}} 5.0
tidegate_preemptions_total{{cause="share",kind="swap"}} {preempted}
"""
VLLM = """\
vllm:num_requests_running{engine="0",model_name="a/b"} 4.0
vllm:num_requests_running{engine="1",model_name="a/b"} 3.0
vllm:kv_cache_usage_perc{engine="0",model_name="a/b"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="a/b"} 0.75
vllm:generation_tokens_total{engine="0",model_name="a/b"} 100.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="a/b"} 0.0
"""
LLAMA = """\
llamacpp:requests_processing 2
llamacpp:requests_deferred 1
llamacpp:tokens_predicted_total 50
llamacpp:predicted_tokens_seconds 33.3
"""


def by_name(kind: str, *pages: tuple[float, str]) -> dict[str, Series]:
    read = [Page(at_s, wanted_lines(kind, text.encode())) for at_s, text in pages]
    return {one.name: one for one in series(kind, read)}


def tidegate(running: float, swapped_out: float, preempted: float) -> str:
    return TIDEGATE.format(running=running, swapped_out=swapped_out, preempted=preempted)


def test_a_gauge_stays_as_it_is_and_a_counter_is_what_it_grew_by() -> None:
    found = by_name(
        "tidegate", (0.001, tidegate(1, 1e6, 7)), (0.5, tidegate(4, 3e6, 7)), (1.0, tidegate(2, 3.5e6, 9))
    )
    at_ms = [1.0, 500.0, 1000.0]
    assert found["running"] == Series(
        "running", "tidegate_requests_running", "requests", False, at_ms, [1, 4, 2]
    )
    source = 'tidegate_kv_transfer_bytes_total{kind="swap_out"}'
    assert found["bytes swap_out"] == Series("bytes swap_out", source, "bytes", True, at_ms, [0, 2e6, 2.5e6])
    assert found["preemptions swap"].values == [0, 0, 2]
    assert found["preemptions swap"].source == (
        'tidegate_preemptions_total{cause="pressure",kind="swap"}'
        ' + tidegate_preemptions_total{cause="share",kind="swap"}'
    )


def test_blocks_of_a_tier_are_told_apart_by_what_they_are_for() -> None:
    found = by_name("tidegate", (0.0, tidegate(1, 0, 0)))
    assert {name: one.values for name, one in found.items() if name.startswith("kv_")} == {
        "kv_blocks host": [34], "kv_cached host": [20], "kv_room host": [64],
    }  # fmt: skip


def test_a_counter_that_begins_anew_goes_on_from_where_it_was() -> None:
    totals = (100.0, 150.0, 10.0, 30.0)
    pages = [(float(at), tidegate(0, total, 0)) for at, total in enumerate(totals)]
    assert by_name("tidegate", *pages)["bytes swap_out"].values == [0, 50, 60, 80]


def test_engines_are_added_up_and_of_shares_the_largest_counts() -> None:
    found = by_name("vllm", (0.0, VLLM))
    assert set(found) == {"running", "kv_share", "generated_tokens"}
    assert (found["running"].values, found["kv_share"].values) == ([7], [0.75])


def test_llama_cpp_has_the_same_names() -> None:
    found = by_name("llama.cpp", (0.0, LLAMA), (1.0, LLAMA.replace(" 50", " 80")))
    assert {name: one.values for name, one in found.items()} == {
        "running": [2, 2], "waiting": [1, 1], "generated_tokens": [0, 30],
    }  # fmt: skip


def test_a_measure_that_is_on_some_pages_only_has_their_times() -> None:
    found = by_name("tidegate", (0.0, ""), (1.0, tidegate(1, 0, 0)), (2.0, ""), (3.0, tidegate(2, 0, 0)))
    assert (found["running"].at_ms, found["running"].values) == ([1000.0, 3000.0], [1, 2])


@pytest.mark.parametrize(
    "line",
    [
        "tidegate_requests_running",
        "tidegate_requests_running x",
        "tidegate_requests_running NaN",
        "tidegate_requests_running +Inf",
        'tidegate_requests_running{a="b" 3',
        "tidegate_requests_running 1 2 3",
        "tidegate_requests_running \xff",
    ],
)
def test_what_is_no_sample_is_passed_over(line: str) -> None:
    assert by_name("tidegate", (0.0, line)) == {}


def test_labels_may_hold_anything_and_samples_may_have_a_time() -> None:
    line = 'tidegate_evictions_total{policy="a,\\"b\\"} 7",tier="disk"} 5 1700000000000'
    (found,) = by_name("tidegate", (0.0, line)).values()
    assert (found.name, found.values) == ("evictions disk", [0])


def test_a_label_that_is_missing_is_a_question_mark() -> None:
    assert set(by_name("tidegate", (0.0, "tidegate_evictions_total 5"))) == {"evictions ?"}


def test_a_server_that_is_not_known_has_no_measures() -> None:
    assert wanted_lines("unknown", tidegate(1, 0, 0).encode()) == []
    assert by_name("unknown", (0.0, VLLM)) == {}
