"""An engine as it is put together for real, over a tiny model."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from pathlib import Path

import pytest

from engine.config import EngineConfig, MemorySize
from engine.core import EngineCore
from engine.execution import grammar_trial
from engine.execution.grammar_trial import TrialWorkshop
from engine.execution.grammars import CompiledGrammar
from engine.messages import AddRequest, Grammar, SamplingParams
from engine.startup import build_core
from tests.support.tiny_models import make_model
from tests.support.tiny_tokenizers import byte_level, save

TIMEOUT_S = 60
NUM_GRAMMARS = 6


def generate(core: EngineCore, woken: threading.Event, grammar: Grammar) -> str | None:
    """Until the answer ends; its error, if there is one."""
    sampling = SamplingParams(max_tokens=4, seed=0, grammar=grammar)
    core.add(AddRequest(request_id=grammar.text, prompt_token_ids=(5, 6), sampling=sampling))
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        report = core.step()
        for delta in () if report is None else report.deltas:
            if delta.ends_request:
                return delta.error
        if not core.can_step():
            woken.wait(TIMEOUT_S)
        woken.clear()
    raise AssertionError("the answer does not end")


@pytest.mark.timeout(300)
def test_the_grammars_of_requests_that_are_over_are_freed_as_the_compilers_bounds_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: weakref.WeakSet[CompiledGrammar] = weakref.WeakSet()
    compile_ = TrialWorkshop.compile

    def watched(workshop: TrialWorkshop, grammar: Grammar) -> CompiledGrammar:
        compiled = compile_(workshop, grammar)
        alive.add(compiled)
        return compiled

    monkeypatch.setattr(grammar_trial.TrialWorkshop, "compile", watched)
    monkeypatch.setattr("engine.execution.grammar_compiler._MAX_RECENT", 2)
    make_model(vocab_size=300, eos_token_id=266).save_pretrained(tmp_path)
    save(byte_level(), tmp_path)
    config = EngineConfig(
        model=str(tmp_path), device="cpu", max_model_len=64, device_kv=MemorySize(num_bytes=2**24)
    )
    woken = threading.Event()
    core, _ = build_core(config, lambda *_: None, time.monotonic, woken.set)
    for i in range(NUM_GRAMMARS):
        assert generate(core, woken, Grammar("regex", f"[a-z]{{9}}{i}")) is None
    gc.collect()
    assert len(alive) == 2
    assert core.problems() == ()
    masks = core._executor.masks  # type: ignore[attr-defined]
    assert len(masks._states) == 0
    core.close(0.0)
