"""A report that is too long for a frame goes out in parts, and nothing of it is lost or told twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.messages import FromEngine, PromptLogprobs, StepReport, TokenDelta, TokenLogprobs
from engine.process import EngineServer
from engine.reports import PART_BYTES, parts
from engine.stats import EngineStats
from engine.wire import MAX_FRAME_BYTES, encode_frame


def report(*deltas: TokenDelta) -> StepReport:
    return StepReport(step=3, deltas=deltas, stats=EngineStats(), stage_seconds={"execute": 1.0})


def packed(num_bytes: int) -> PromptLogprobs:
    return PromptLogprobs(bytes(num_bytes), bytes(num_bytes))


def test_an_ordinary_report_goes_as_it_is() -> None:
    whole = report(TokenDelta("a", (1,)), TokenDelta("b", (2,), (TokenLogprobs(-0.5, ((1, -0.5),)),)))
    assert [*parts(whole)] == [whole]
    empty = report()
    assert [*parts(empty)] == [empty]


@given(st.lists(st.integers(0, 120), max_size=12), st.integers(1, 300))
def test_parts_are_short_and_together_the_whole(sizes: list[int], part_bytes: int) -> None:
    whole = report(*(TokenDelta(f"r{i}", prompt_logprobs=packed(4 * size)) for i, size in enumerate(sizes)))
    found = [*parts(whole, part_bytes)]
    assert tuple(delta for part in found for delta in part.deltas) == whole.deltas
    assert [part.stage_seconds for part in found] == [{"execute": 1.0}, *[{}] * (len(found) - 1)]
    for part in found:
        assert part.deltas or not sizes
        assert (
            len(part.deltas) < 2 or sum(8 * sizes[int(d.request_id[1:])] for d in part.deltas) <= part_bytes
        )


def test_what_is_counted_is_no_less_than_what_is_sent() -> None:
    entry = TokenLogprobs(-0.123, tuple((2**31, -0.5) for _ in range(20)))
    delta = TokenDelta("a", (2**31,) * 100, (entry,) * 100)
    size = len(encode_frame(FromEngine(2**62, report(delta)))) - len(
        encode_frame(FromEngine(2**62, report()))
    )
    overhead = 200  # names, lengths and what else a delta has
    assert [len(part.deltas) for part in parts(report(delta, delta), 2 * (size - overhead) - 1)] == [1, 1]


def test_many_long_prompts_in_one_step_fit_their_frames() -> None:
    whole = report(*(TokenDelta(f"r{i}", prompt_logprobs=packed(8 * 2**20)) for i in range(20)))
    assert MAX_FRAME_BYTES < 20 * 16 * 2**20
    for part in parts(whole):
        assert sum(
            2 * len(delta.prompt_logprobs.ranks) for delta in part.deltas if delta.prompt_logprobs
        ) <= (PART_BYTES)
        encode_frame(FromEngine(1, part))


class _Connection:
    """Counts what is sent; the gateway goes once something has come of a step."""

    def __init__(self) -> None:
        self.sent: list[StepReport] = []

    def send(self, event: StepReport) -> None:
        self.sent.append(event)

    def poll(self) -> list[object]:
        return []

    @property
    def is_closed(self) -> bool:
        return len(self.sent) > 1


class _Core:
    def can_step(self) -> bool:
        return True

    def report(self) -> StepReport:
        return report()

    def step(self) -> StepReport:
        return report(*(TokenDelta(f"r{i}", prompt_logprobs=packed(PART_BYTES // 3)) for i in range(3)))


def test_the_step_loop_sends_the_parts() -> None:
    connection = _Connection()
    EngineServer(connection, _Core()).run()  # type: ignore[arg-type]
    assert [len(event.deltas) for event in connection.sent] == [0, 1, 1, 1]
