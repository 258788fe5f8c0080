"""Requests wait for their grammars outside of the scheduler, as live as any other, and nobody else does."""

from __future__ import annotations

import msgspec
import pytest

from engine.grammar_room import Form
from engine.messages import (
    AddRequest,
    BeamParams,
    Branch,
    FinishReason,
    ForkRequest,
    Grammar,
    SamplingParams,
    TokenDelta,
)
from engine.schedule import Sample, SchedulerOutput, StepOutput
from tests.support.scripted_compiler import ScriptedCompiler
from tests.support.small_engine import FakeBackend, SmallEngine
from tiering.types import Tier

DIGITS, LETTERS = Grammar("regex", "[0-9]+"), Grammar("regex", "[a-z]+")


def engine_with_compiler(**options: object) -> tuple[SmallEngine, ScriptedCompiler]:
    compiler = ScriptedCompiler()
    return SmallEngine(num_blocks=64, compiler=compiler, **options), compiler  # type: ignore[arg-type]


def test_others_go_on_while_a_grammar_is_compiled() -> None:
    engine, compiler = engine_with_compiler()
    engine.add("slow", [1, 2], grammar=DIGITS)
    engine.add("plain", [1, 2, 3])
    engine.run()
    assert engine.finished == {"plain": FinishReason.LENGTH}
    assert engine.core.stats().num_waiting == 1
    compiler.finish(DIGITS)
    assert engine.core.can_step()
    engine.step()
    engine.run()
    assert engine.finished["slow"] is FinishReason.LENGTH
    assert len(engine.tokens["slow"]) == 8
    engine.assert_idle()
    assert engine.core.stats().num_waiting == 0


def test_with_nothing_but_grammars_to_wait_for_the_engine_sleeps_until_woken() -> None:
    engine, compiler = engine_with_compiler()
    engine.add("r", [1], grammar=DIGITS)
    report = engine.step()
    assert report is not None and report.stats.num_waiting == 1
    assert not engine.core.can_step()
    assert engine.core.patience_s is None
    compiler.finish(DIGITS)
    assert engine.core.can_step()


def test_every_grammar_that_is_done_shows_as_progress() -> None:
    engine, compiler = engine_with_compiler()
    engine.add("a", [1], grammar=DIGITS)
    engine.add("b", [1], grammar=LETTERS)
    before = engine.step()
    compiler.finish(DIGITS, error="No.")
    after = engine.step()
    assert before is not None and after is not None
    assert after.step > before.step


def test_those_who_want_the_same_grammar_wait_for_one_compilation_and_keep_their_order() -> None:
    engine, compiler = engine_with_compiler(max_num_seqs=1)
    for name in ("a", "b", "c"):
        engine.add(name, [1, 2], grammar=DIGITS)
    assert compiler.submitted == [Form(DIGITS)]
    compiler.finish(DIGITS)
    engine.step()
    engine.run()
    assert list(engine.finished) == ["a", "b", "c"]
    engine.add("d", [1, 2], grammar=DIGITS)
    assert compiler.submitted == []
    engine.run()
    assert engine.finished["d"] is FinishReason.LENGTH


def test_a_grammar_that_cannot_be_compiled_is_the_requests_fault() -> None:
    engine, compiler = engine_with_compiler()
    engine.add("r", [1], grammar=DIGITS)
    compiler.finish(DIGITS, error="The regular expression cannot be read: unclosed group.")
    report = engine.step()
    assert report is not None
    (delta,) = report.deltas
    assert delta.is_invalid and delta.ends_request and delta.finish_reason is FinishReason.ERROR
    assert delta.error == "The regular expression cannot be read: unclosed group."
    engine.assert_idle()


def test_an_abort_while_compiling_is_final_and_idempotent() -> None:
    engine, compiler = engine_with_compiler()
    engine.add("a", [1], grammar=DIGITS)
    engine.add("b", [1], grammar=DIGITS)
    engine.core.abort("a")
    engine.core.abort("a")
    assert compiler.cancelled == []
    engine.core.abort("b")
    engine.core.abort("b")
    assert compiler.cancelled == [Form(DIGITS)]
    engine.run()
    assert engine.core.stats().num_waiting == 0
    engine.add("a", [1], grammar=DIGITS)  # the name is free again
    compiler.finish(DIGITS)
    engine.step()
    engine.run()
    assert engine.finished == {"a": FinishReason.LENGTH}
    engine.assert_idle()


def test_an_id_in_use_by_a_waiting_request_is_refused() -> None:
    engine, _ = engine_with_compiler()
    engine.add("a", [1], grammar=DIGITS)
    engine.add("a", [1])
    report = engine.step()
    assert report is not None and "already in use" in str(report.deltas[0].error)
    assert engine.core.stats().num_waiting == 1


def test_a_pause_while_compiling_holds_and_a_resume_lifts_it() -> None:
    engine, compiler = engine_with_compiler()
    engine.add("a", [1], grammar=DIGITS)
    engine.core.pause("a")
    assert engine.core.stats().num_paused == 1
    compiler.finish(DIGITS)
    engine.step()
    engine.run()
    assert engine.tokens["a"] == []
    assert engine.core.stats().num_paused == 1
    engine.core.resume("a")
    engine.run()
    assert engine.finished["a"] is FinishReason.LENGTH


def test_sequences_that_were_aborted_while_compiling_do_not_come() -> None:
    engine, compiler = engine_with_compiler()
    engine.add("a", [1, 2], n=3, grammar=DIGITS)
    engine.core.abort("a", 1)
    compiler.finish(DIGITS)
    engine.step()
    engine.run()
    assert {index for _, index in engine.ended} == {0, 2}
    engine.add("b", [1, 2], n=2, grammar=LETTERS)
    engine.core.abort("b", 0)
    engine.core.abort("b", 1)
    report = engine.step()
    assert report is not None
    assert [delta for delta in report.deltas if delta.request_id == "b"] == [
        TokenDelta("b", index=1, ends_request=True)
    ]
    assert compiler.cancelled == [Form(LETTERS)]


def test_a_grammar_is_held_until_its_last_request_is_over() -> None:
    engine, compiler = engine_with_compiler()
    compiler.known[Form(DIGITS)] = object()
    engine.add("a", [1, 2], grammar=DIGITS)
    engine.add("b", [1, 2], grammar=DIGITS)
    engine.step()
    held = engine.core._grammars._held
    assert set(held) == {"a", "b"}
    engine.core.abort("a")
    assert set(held) == {"b"}
    engine.run()
    assert set(held) == set()


@pytest.mark.parametrize("end", ["length", "abort", "abort of all sequences", "error"])
def test_whatever_ends_a_request_its_grammar_is_forgotten_once(end: str) -> None:
    forgotten: list[str] = []
    compiler = ScriptedCompiler()
    backend = _LosesTheThread() if end == "error" else None
    engine = SmallEngine(num_blocks=64, compiler=compiler, forget_grammar=forgotten.append, backend=backend)
    compiler.known[Form(DIGITS)] = object()
    engine.add("plain", [1, 2])
    engine.add("r", [1, 2], n=2, grammar=DIGITS)
    engine.step()
    engine.step()
    assert forgotten == []
    if end == "abort":
        engine.core.abort("r")
    elif end == "abort of all sequences":
        engine.core.abort("r", 0)
        assert forgotten == []
        engine.core.abort("r", 1)
    engine.run()
    engine.core.abort("r")
    assert forgotten == ["r"]
    engine.assert_idle()


def test_tenants_do_not_share_what_is_compiled_unless_they_share_a_salt() -> None:
    engine, compiler = engine_with_compiler()
    engine.add("a", [1, 2], grammar=DIGITS, salt=b"ours", tenant="a")
    compiler.finish(DIGITS, salt=b"ours")
    engine.step()
    engine.add("b", [1, 2], grammar=DIGITS, salt=b"ours", tenant="b")
    engine.add("c", [1, 2], grammar=DIGITS, salt=b"theirs", tenant="c")
    assert compiler.submitted == [Form(DIGITS, b"theirs")]
    assert compiler.tenants == ["a", "c"]
    engine.run()
    assert set(engine.finished) == {"a", "b"}
    compiler.finish(DIGITS, salt=b"theirs")
    engine.step()
    engine.run()
    assert set(engine.finished) == {"a", "b", "c"}


def test_a_step_is_told_whose_compiled_grammar_to_use() -> None:
    backend = _LosesTheThread()
    compiler = ScriptedCompiler()
    compiler.known[Form(DIGITS, b"ours")] = object()
    engine = SmallEngine(num_blocks=64, compiler=compiler, backend=backend)
    engine.add("a", [1, 2], grammar=DIGITS, salt=b"ours")
    engine.run()
    assert set(backend.salts) == {b"ours"}


def test_a_request_that_was_paused_while_compiling_is_idle_since_it_came_to_the_scheduler() -> None:
    engine, compiler = engine_with_compiler()
    engine.add("plain", [1, 2])
    engine.run()
    engine.add("a", [1], grammar=DIGITS)
    engine.core.pause("a")
    compiler.finish(DIGITS)
    engine.step()
    group = engine.scheduler.queues.get("a")
    assert group is not None and group.paused
    assert group.idle_since == engine.core._clock() > 0


def test_what_does_not_go_with_a_grammar_is_refused() -> None:
    engine, _ = engine_with_compiler()
    engine.add("beams", [1], grammar=DIGITS, n=2, beam=BeamParams(2))
    engine.add("endless", [1], grammar=DIGITS, ignore_eos=True)
    plain = SmallEngine()
    plain.add("r", [1], grammar=DIGITS)
    for one in (engine, plain):
        report = one.step()
        assert report is not None and all(delta.is_invalid for delta in report.deltas)
        assert one.errors and all("rammar" in error for error in one.errors.values())
        one.assert_idle()


class _LosesTheThread(FakeBackend):
    """The grammar of one request cannot be followed beyond its third token."""

    def __init__(self) -> None:
        super().__init__(4, {Tier.DEVICE: 64})
        self._inner = self.executor
        self.salts: list[bytes] = []
        self.executor = self  # type: ignore[assignment]

    def execute(self, plan: SchedulerOutput) -> StepOutput:
        output = self._inner.execute(plan)
        asked = {chunk.sequence_id: chunk.sample for chunk in plan.chunks if chunk.sample is not None}
        self.salts += [spec.cache_salt for spec in asked.values()]
        samples = []
        for sample in output.samples:
            spec = asked[sample.sequence_id]
            is_lost = spec.params.grammar is not None and len(spec.output_token_ids) == 3
            samples.append(Sample(sample.sequence_id, (), "It grew too complex.") if is_lost else sample)
        return StepOutput(tuple(samples))


def test_a_grammar_that_cannot_be_followed_ends_its_request_only() -> None:
    engine, compiler = engine_with_compiler(backend=_LosesTheThread())
    compiler.known[Form(DIGITS)] = object()
    engine.add("lost", [1, 2], grammar=DIGITS, n=2)
    engine.add("plain", [1, 2])
    engine.run()
    assert engine.errors == {"lost": "It grew too complex."}
    assert len(engine.tokens["lost"]) == 3
    assert engine.finished["plain"] is FinishReason.LENGTH
    engine.assert_idle()


def test_a_fork_may_have_a_grammar_of_its_own() -> None:
    engine, compiler = engine_with_compiler()
    engine.add("a", [1, 2])
    engine.run()
    sampling = SamplingParams(max_tokens=4, seed=0, grammar=DIGITS)
    engine.core.fork(ForkRequest(request_id="a", branches=(Branch(request_id="b", sampling=sampling),)))
    assert compiler.submitted == [Form(DIGITS)]
    compiler.finish(DIGITS)
    engine.step()
    engine.run()
    assert engine.finished["b"] is FinishReason.LENGTH


def test_closing_closes_the_compiler() -> None:
    engine, compiler = engine_with_compiler()
    engine.add("a", [1], grammar=DIGITS)
    engine.core.close(0.0)
    assert compiler.closed


def test_grammars_survive_the_way_to_the_engine() -> None:
    message = AddRequest(
        request_id="r",
        prompt_token_ids=(1,),
        sampling=SamplingParams(max_tokens=1, seed=0, grammar=DIGITS),
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=AddRequest) == message
