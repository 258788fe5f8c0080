"""Hypothesis drives scheduler, block manager and all tiers through random lives of many requests.

Requests have one sequence or several, drawn or searched for, and branch off one another. After every step
everything is recounted, and each sequence's tokens are compared with what the fake model says when
nothing is shared, preempted, moved, lost or evicted. Tenants of several weights, and classes of requests,
compete for places and blocks. Copies are late, early, out of order, and fail. A
restart keeps the disk and nothing else.
"""

from __future__ import annotations

import os

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

from engine.messages import BeamParams, Branch, FinishReason, ForkRequest, Retention, SamplingParams
from tests.support.fake_kv import expected_beams, expected_scores, expected_tokens
from tests.support.small_engine import SmallEngine
from tiering.movers.base import Mischief
from tiering.policies.registry import EVICTION, RESTORE, WRITE
from tiering.types import BlockHash
from tiering.whereabouts import cells

SLOW = os.environ.get("TIDEGATE_SLOW") == "1"
MAX_LIVE = 12
TENANTS = (("", 1.0), ("b", 1.0), ("c", 3.0), ("d", 0.25))
RETENTIONS = (
    None, None, Retention(keep_s=4.0), Retention(keep_s=1e6), Retention(keep_s=20.0, lowest="host"),
    Retention(keep_s=0.0, lowest="host"),
)  # fmt: skip
SHARED_PREFIX = [(i * 11) % 1000 for i in range(40)]


class EngineMachine(RuleBasedStateMachine):
    """Requests that share prefixes, in pools that are too small for all of them.

    ``num_steps`` counts the engine steps of all lives; everything is recounted after each.
    """

    engine: SmallEngine
    num_steps = 0
    num_stopped = 0  # samples that ended before others of their request
    num_copied = 0  # blocks, before a write
    num_born = 0  # sequences that shared anew what was computed anew
    num_errors = 0
    num_scored = 0  # prompts with log probabilities that were preempted when some of these were found
    num_forgotten = 0  # blocks that were to be lost
    num_kept = 0  # blocks that were kept, at a step
    num_share_preemptions = 0  # for the share of another tenant

    @initialize(
        num_blocks=st.integers(6, 16),
        block_size=st.sampled_from([1, 2, 4]),
        host_blocks=st.sampled_from([0, 1, 3, 6, 12, 40]),
        disk_blocks=st.sampled_from([0, 2, 8, 60, 60]),
        max_num_seqs=st.integers(2, 6),
        extra_tokens=st.integers(0, 20),
        prefix_caching=st.booleans(),
        quantum_steps=st.sampled_from([0.0, 0.5, 2.0]),
        eviction=st.sampled_from(sorted(EVICTION)),
        write=st.sampled_from(sorted(WRITE)),
        restore=st.sampled_from(sorted(RESTORE)),
        mischief=st.builds(
            Mischief,
            seed=st.integers(0, 2**16),
            max_delay_polls=st.integers(0, 4),
            failure_rate=st.sampled_from([0.0, 0.0, 0.05, 0.3]),
            corruption_rate=st.sampled_from([0.0, 0.0, 0.05]),
            shuffles=st.booleans(),
        ),
    )
    def build(self, max_num_seqs: int, extra_tokens: int, disk_blocks: int, **options: object) -> None:
        if not options["host_blocks"]:
            disk_blocks = 0
        self.options = dict(
            options,
            disk_blocks=disk_blocks,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_seqs + extra_tokens,
        )
        self.engine = self.new_engine()
        self.window = self.engine.blocks.num_blocks * self.engine.blocks.block_size
        self.prompts: dict[str, list[int]] = {}
        self.sampling: dict[str, SamplingParams] = {}
        self.live: list[str] = []
        self.others: set[str] = set()
        self.off_disk: set[str] = set()
        self.aborted: set[str] = set()
        self.ended: set[str] = set()
        self.scored: set[str] = set()
        self.interrupted: set[str] = set()
        self.verified: dict[tuple[str, int], int] = {}
        self.dropped: set[tuple[str, int]] = set()
        self.num_added = 0

    def new_engine(self) -> SmallEngine:
        engine = SmallEngine(**self.options)  # type: ignore[arg-type]
        bear = engine.blocks.bear

        def counted(sequence_id: str) -> int:
            EngineMachine.num_born += 1
            return bear(sequence_id)

        engine.blocks.bear = counted  # type: ignore[method-assign]
        return engine

    def new_prompt(self, shared: int, own: int) -> list[int]:
        """Tokens that other prompts begin with too, and some of its own."""
        return [*SHARED_PREFIX[:shared], *(self.num_added + i for i in range(own))][: self.window - 1]

    def add_prompt(
        self,
        prompt: list[int],
        max_tokens: int,
        salt: bytes,
        priority: int = 0,
        expected_return_s: float | None = None,
        payer: int = 0,
        session: str = "",
        retention: Retention | None = None,
        kv_quota: float = 0.5,
        **sampling: object,
    ) -> None:
        """``payer``: the tenant that is served, apart from whose cache it is."""
        if retention is not None and retention.lowest == "host":  # shares nothing with those that may
            salt = b"h"
            self.off_disk.add(f"r{self.num_added}")
        asked = SamplingParams(max_tokens=max_tokens, **{"seed": 0, **sampling})  # type: ignore[arg-type]
        name = self.note(prompt, asked)
        tenant, weight = TENANTS[payer]
        future = (session, retention, kv_quota)
        self.engine.add(
            name, prompt, max_tokens, salt, priority, expected_return_s, tenant, weight, *future, **sampling
        )

    def note(self, prompt: list[int], sampling: SamplingParams) -> str:
        name = f"r{self.num_added}"
        self.num_added += 1
        self.prompts[name], self.sampling[name] = prompt, sampling
        self.live.append(name)
        return name

    @precondition(lambda self: len(self.live) < MAX_LIVE)
    @rule(
        shared=st.integers(0, 24),
        own=st.integers(0, 6),
        max_tokens=st.integers(0, 48),
        tenant=st.booleans(),
        priority=st.integers(0, 1),
        expected_return_s=st.sampled_from([None, 5.0, 500.0]),
        prompt_logprobs=st.sampled_from([None, None, 0, 2]),
        payer=st.integers(0, len(TENANTS) - 1),
        session=st.sampled_from(["", "s", "t", "u"]),
        retention=st.sampled_from(RETENTIONS),
        kv_quota=st.sampled_from([0.0, 0.2, 0.5, 1.0]),
    )
    def add(self, shared: int, own: int, max_tokens: int, tenant: bool, **more: object) -> None:
        prompt = self.new_prompt(shared, own)
        if prompt:
            if tenant:
                self.others.add(f"r{self.num_added}")
            self.add_prompt(prompt, max_tokens, b"b" if tenant else b"a", **more)

    @precondition(lambda self: len(self.live) < MAX_LIVE)
    @rule(
        payer=st.integers(0, len(TENANTS) - 1),
        count=st.integers(2, 6),
        max_tokens=st.integers(8, 48),
        priority=st.integers(0, 1),
    )
    def flood(self, payer: int, count: int, max_tokens: int, priority: int) -> None:
        """One tenant takes all places, and then another one comes."""
        for who in (*[payer] * count, (payer + 1) % len(TENANTS)):
            self.add_prompt(self.new_prompt(3, 2), max_tokens, b"a", priority, payer=who)
        self.step(6)

    @precondition(lambda self: len(self.live) < MAX_LIVE)
    @rule(
        shared=st.integers(0, 24),
        own=st.integers(1, 3),
        max_tokens=st.integers(1, 16),
        n=st.integers(2, 4),
        priority=st.integers(0, 1),
        payer=st.integers(0, len(TENANTS) - 1),
        seed=st.integers(0, 3),
        stops=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 16)), max_size=2),
        prompt_logprobs=st.sampled_from([None, None, 1]),
    )
    def add_samples(
        self,
        shared: int,
        own: int,
        max_tokens: int,
        n: int,
        seed: int,
        stops: list[tuple[int, int]],
        prompt_logprobs: int | None,
        **who: int,
    ) -> None:
        """``stops``: samples that end by themselves, each with a stop token that only it is to meet."""
        prompt = self.new_prompt(shared, own)
        ends = tuple(expected_tokens(prompt, at, seed=seed + index)[-1] for index, at in stops)
        self.add_prompt(
            prompt,
            max_tokens,
            b"a",
            n=n,
            seed=seed,
            stop_token_ids=ends,
            prompt_logprobs=prompt_logprobs,
            **who,
        )

    @precondition(lambda self: len(self.live) < MAX_LIVE)
    @rule(
        shared=st.integers(1, 16),
        max_tokens=st.integers(1, 12),
        width=st.integers(2, 4),
        n=st.integers(1, 4),
        early_stopping=st.sampled_from([False, True, "never"]),
        prompt_logprobs=st.sampled_from([None, None, 1]),
        payer=st.integers(0, len(TENANTS) - 1),
    )
    def add_beams(
        self,
        shared: int,
        max_tokens: int,
        width: int,
        n: int,
        early_stopping: bool,
        prompt_logprobs: int | None,
        payer: int,
    ) -> None:
        prompt = self.new_prompt(shared, 1)
        beam = BeamParams(width, 1.0, early_stopping)
        self.add_prompt(
            prompt, max_tokens, b"a", n=min(n, width), beam=beam, prompt_logprobs=prompt_logprobs, payer=payer
        )

    @precondition(lambda self: len(self.live) < MAX_LIVE)
    @rule(
        shared=st.integers(8, 24),
        max_tokens=st.integers(0, 4),
        num_top=st.integers(0, 2),
        num_steps=st.integers(1, 3),
        payer=st.integers(0, len(TENANTS) - 1),
    )
    def add_and_preempt_in_mid_prompt(
        self, shared: int, max_tokens: int, num_top: int, num_steps: int, payer: int
    ) -> None:
        """A request whose prompt is scored, preempted when some of it is found and some is not."""
        prompt = self.new_prompt(shared, 1)
        name = f"r{self.num_added}"
        self.add_prompt(prompt, max_tokens, b"a", prompt_logprobs=num_top, payer=payer)
        self.step(num_steps)
        group = self.engine.scheduler.queues.running.get(name)
        scoring = None if group is None else group.scoring
        if group is not None and scoring and scoring.num_found and not scoring.is_complete:
            self.interrupted.add(name)
            self.engine.scheduler.preempt(group)

    @precondition(lambda self: self.prompts and len(self.live) < MAX_LIVE)
    @rule(
        data=st.data(), own=st.lists(st.integers(0, 2), min_size=1, max_size=3), max_tokens=st.integers(1, 8)
    )
    def fork(self, data: st.DataObject, own: list[int], max_tokens: int) -> None:
        """Branches of one sequence, each with some tokens of its own; of one that is not known, errors."""
        parent = data.draw(st.sampled_from(sorted(self.prompts)))
        index = data.draw(st.integers(0, self.sampling[parent].n - 1))
        salt = b"b" if parent in self.others else b"a"
        history = self.engine.scheduler.history(parent, index, salt)
        if history is not None:
            assert list(history) == [*self.prompts[parent], *self.engine.sample(parent, index)]
        branches = []
        for count in own:
            sampling = SamplingParams(max_tokens=max_tokens, seed=0)
            extra = [self.num_added] * count
            name = self.note([*(history or ()), *extra], sampling)
            branches.append(Branch(request_id=name, sampling=sampling, token_ids=tuple(extra)))
        self.engine.core.fork(
            ForkRequest(request_id=parent, branches=tuple(branches), index=index, cache_salt=salt)
        )

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort_one(self, data: st.DataObject) -> None:
        """One sequence of a request; with the last of them the request is over."""
        name = data.draw(st.sampled_from(self.live))
        index = data.draw(st.integers(0, self.sampling[name].n - 1))
        self.engine.core.abort(name, index)
        self.dropped.add((name, index))
        if not self.engine.scheduler.has_request(name) and name not in self.engine.finished:
            self.live.remove(name)
            self.aborted.add(name)

    @precondition(lambda self: self.prompts and not self.live)
    @rule(max_tokens=st.integers(1, 12))
    def come_back(self, max_tokens: int) -> None:
        """The oldest conversation, whose blocks have had the most time to age."""
        oldest = next(iter(self.prompts))
        history = [*self.prompts[oldest], *self.engine.tokens[oldest]]
        self.add_prompt(history[: self.window - 1], max_tokens, b"a")

    @precondition(lambda self: self.prompts and len(self.live) < MAX_LIVE)
    @rule(data=st.data(), max_tokens=st.integers(1, 12), own=st.integers(0, 3))
    def continue_or_fork(self, data: st.DataObject, max_tokens: int, own: int) -> None:
        """A new request over what another one has so far, be it running or long gone."""
        parent = data.draw(st.sampled_from(sorted(self.prompts)))
        history = [*self.prompts[parent], *self.engine.tokens[parent], *range(own)]
        self.add_prompt(history[: self.window - 1], max_tokens, b"a")

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

    @precondition(lambda self: self.engine.scheduler.num_running or self.engine.scheduler.num_restoring)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        """At a moment when nothing asks for it."""
        queues = self.engine.scheduler.queues
        name = data.draw(st.sampled_from(sorted((*queues.running, *queues.restoring))))
        self.engine.scheduler.preempt((queues.running | queues.restoring)[name])

    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        """Forget a cached block on some tier."""
        for tier, pool in self.engine.tiers.pools():
            names = sorted(pool.label_of(block).name for block in pool.evictable_blocks())  # type: ignore[union-attr]
            if names:
                self.engine.tiers._forget_in(tier, BlockHash(data.draw(st.sampled_from(names))))

    @precondition(lambda self: self.prompts)
    @rule(data=st.data(), from_token=st.integers(-1, 40))
    def forget_kv(self, data: st.DataObject, from_token: int) -> None:
        """A history is lost on all tiers, whoever uses it or is getting it."""
        name = data.draw(st.sampled_from(sorted(self.prompts)))
        history = [*self.prompts[name], *self.engine.tokens[name]]
        self.engine.forget(history, from_token, self.salt_of(name))
        lost = self.names_of(name)[max(0, from_token) // self.engine.blocks.block_size :]
        assert set(cells(self.engine.tiers, lost)) <= {"-"}
        EngineMachine.num_forgotten += len(lost)

    def names_of(self, name: str) -> list[BlockHash]:
        """Of the blocks that are full with what a request has so far."""
        history = [*self.prompts[name], *self.engine.tokens[name]]
        return self.engine.scheduler._namer(self.salt_of(name)).names(history)

    def salt_of(self, name: str) -> bytes:
        return b"h" if name in self.off_disk else b"b" if name in self.others else b"a"

    @rule(disk=st.booleans())
    def hold_copies(self, disk: bool) -> None:
        (self.engine.disk if disk else self.engine.link).hold()

    @rule()
    def let_copies_go(self) -> None:
        self.engine.link.release()
        self.engine.disk.release()

    @rule(count=st.integers(1, 12))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.engine.step()
            EngineMachine.num_kept += sum(pool.num_kept() for _, pool in self.engine.tiers.pools())
        EngineMachine.num_steps += count
        self.live = [name for name in self.live if name not in self.engine.finished]

    @precondition(lambda self: self.engine.tiers.disk is not None)
    @rule()
    def restart(self) -> None:
        """What was alive is lost with the process; what is on disk is found again."""
        self.check_what_stays_off_disk()
        before = self.engine
        self.engine = self.new_engine()
        self.engine.find_on_disk(before)
        self.aborted |= {name for name in self.live if name not in before.finished}
        self.ended |= set(before.finished)
        self.engine.tokens, self.engine.samples = before.tokens, before.samples
        self.engine.prompt_logprobs = before.prompt_logprobs
        self.live = []

    @invariant()
    def nothing_is_lost(self) -> None:
        if hasattr(self, "engine"):
            assert self.engine.core.problems() == ()
            for name, sampling in self.sampling.items():
                if name not in self.scored:
                    self.check_scores(name, sampling)
                for index in range(sampling.n):
                    self.check(name, sampling, index)

    def check_scores(self, name: str, sampling: SamplingParams) -> None:
        """The log probabilities of a prompt come whole, if they are wanted, or not at all."""
        found = self.engine.prompt_logprobs.get(name)
        if sampling.prompt_logprobs is None:
            assert found is None
        elif found is not None:
            assert found == expected_scores(self.prompts[name], sampling.prompt_logprobs)
            self.scored.add(name)
            EngineMachine.num_scored += name in self.interrupted
        else:
            assert not any(self.engine.sample(name, index) for index in range(sampling.n))

    def check(self, name: str, sampling: SamplingParams, index: int) -> None:
        """What a sequence has received is what it should have by now."""
        tokens = self.engine.sample(name, index)
        if self.verified.get((name, index), 0) == len(tokens):
            return
        self.verified[name, index] = len(tokens)
        if sampling.beam is None:
            assert tokens == expected_tokens(self.prompts[name], len(tokens), seed=sampling.seed + index)
        else:
            assert self.engine.ended[name, index] is FinishReason.LENGTH
            if index == sampling.n - 1:
                max_tokens = min(sampling.max_tokens, self.window - len(self.prompts[name]))
                expected = expected_beams(self.prompts[name], sampling.beam, sampling.n, max_tokens)
                assert [self.engine.sample(name, i) for i in range(sampling.n)] == expected

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.let_copies_go()
        for name in self.live:
            self.engine.core.resume(name)
        self.engine.step()  # which also tells what was refused
        self.engine.run()
        self.check_ends()
        self.check_what_stays_off_disk()
        assert self.ended | set(self.engine.finished) | self.aborted == set(self.prompts)
        self.engine.assert_idle()

    def check_what_stays_off_disk(self) -> None:
        on_disk = {label.name for label in self.engine.memory.disk_table.values()}
        for name in self.off_disk:
            assert on_disk.isdisjoint(self.names_of(name))

    def check_ends(self) -> None:
        """Every sequence of a request that finished has ended, and nowhere but where it should."""
        for name in self.engine.finished.keys() - self.engine.errors.keys():
            sampling, prompt = self.sampling[name], self.prompts[name]
            length = min(sampling.max_tokens, self.window - len(prompt))
            assert (name in self.engine.prompt_logprobs) == (sampling.prompt_logprobs is not None)
            for index in range(sampling.n):
                if (name, index) in self.dropped or sampling.beam is not None:
                    continue
                whole = expected_tokens(prompt, length, seed=sampling.seed + index)
                stop = next((i for i, t in enumerate(whole) if t in sampling.stop_token_ids), None)
                assert self.engine.sample(name, index) == whole[: length if stop is None else stop + 1]
                reason = FinishReason.LENGTH if stop is None else FinishReason.STOP
                assert self.engine.ended[name, index] is reason
                EngineMachine.num_stopped += stop is not None and sampling.n > 1
        EngineMachine.num_errors += len(self.engine.errors)
        preemptions = self.engine.scheduler.totals.preemptions
        EngineMachine.num_share_preemptions += preemptions["swap/share"] + preemptions["recompute/share"]
        EngineMachine.num_copied += self.engine.scheduler.totals.block_copies


_SETTINGS = settings(
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.mark.timeout(1800 if SLOW else 600)
def test_random_lives() -> None:
    """The full count, 100,000 steps and more, is that of ``make test-slow``."""
    lives = 3500 if SLOW else 700
    before = EngineMachine.num_steps
    run_state_machine_as_test(
        EngineMachine, settings=settings(_SETTINGS, max_examples=lives, derandomize=True)
    )
    assert EngineMachine.num_steps - before >= (100_000 if SLOW else 17_500)
    part = 1 if SLOW else 0.05  # of what the full count reaches: a fifth, were it not for chance
    assert EngineMachine.num_stopped > 80 * part
    assert EngineMachine.num_copied > 1500 * part
    assert EngineMachine.num_born > 150 * part
    assert EngineMachine.num_scored > 150 * part
    assert EngineMachine.num_share_preemptions > 1500 * part
    assert EngineMachine.num_forgotten > 0
    assert EngineMachine.num_kept > 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_random_lives() -> None:
    run_state_machine_as_test(EngineMachine, settings=settings(_SETTINGS, max_examples=10_000))
