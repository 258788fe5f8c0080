"""Hypothesis drives scheduler and block manager through random lives of many requests.

After every step everything is recounted, and each request's tokens are compared with what the fake
model says when nothing is shared, preempted or evicted.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.support.fake_kv import expected_tokens
from tests.support.small_engine import SmallEngine

MAX_LIVE = 12
SHARED_PREFIX = [(i * 11) % 1000 for i in range(40)]


class EngineMachine(RuleBasedStateMachine):
    """Requests that share prefixes, in a pool that is too small for all of them."""

    engine: SmallEngine

    @initialize(
        num_blocks=st.integers(6, 16),
        block_size=st.sampled_from([1, 2, 4]),
        max_num_seqs=st.integers(2, 6),
        extra_tokens=st.integers(0, 20),
        prefix_caching=st.booleans(),
    )
    def build(
        self, num_blocks: int, block_size: int, max_num_seqs: int, extra_tokens: int, prefix_caching: bool
    ) -> None:
        self.engine = SmallEngine(
            num_blocks=num_blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_seqs + extra_tokens,
            prefix_caching=prefix_caching,
        )
        self.window = num_blocks * block_size
        self.prompts: dict[str, list[int]] = {}
        self.live: list[str] = []
        self.aborted: set[str] = set()

    @precondition(lambda self: len(self.live) < MAX_LIVE)
    @rule(
        shared=st.integers(0, 24), own=st.integers(0, 6), max_tokens=st.integers(1, 48), tenant=st.booleans()
    )
    def add(self, shared: int, own: int, max_tokens: int, tenant: bool) -> None:
        name = f"r{len(self.prompts)}"
        prompt = [*SHARED_PREFIX[:shared], *(len(self.prompts) + i for i in range(own))][: self.window - 1]
        if prompt:
            self.prompts[name] = prompt
            self.live.append(name)
            self.engine.add(name, prompt, max_tokens=max_tokens, salt=b"b" if tenant else b"a")

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.live))
        self.live.remove(name)
        if name not in self.engine.finished:
            self.aborted.add(name)
        self.engine.core.abort(name)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), paused=st.booleans())
    def pause_or_resume(self, data: st.DataObject, paused: bool) -> None:
        name = data.draw(st.sampled_from(self.live))
        (self.engine.core.pause if paused else self.engine.core.resume)(name)

    @rule(count=st.integers(1, 12))
    def step(self, count: int) -> None:
        for _ in range(count):
            if self.engine.core.has_work():
                self.engine.step()
        self.live = [name for name in self.live if name not in self.engine.finished]

    @invariant()
    def nothing_is_lost(self) -> None:
        if hasattr(self, "engine"):
            assert self.engine.core.problems() == ()
            for name, tokens in self.engine.tokens.items():
                assert tokens == expected_tokens(self.prompts[name], len(tokens))

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for name in self.live:
            self.engine.core.resume(name)
        self.engine.run()
        assert set(self.engine.finished) | self.aborted == set(self.prompts)
        self.engine.assert_idle()


_SETTINGS = settings(
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def test_random_lives() -> None:
    run_state_machine_as_test(EngineMachine, settings=settings(_SETTINGS, max_examples=400, derandomize=True))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_random_lives() -> None:
    run_state_machine_as_test(EngineMachine, settings=settings(_SETTINGS, max_examples=10_000))
