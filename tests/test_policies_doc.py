"""The example in docs/policies.md is a whole policy: it is loaded by name and runs an engine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.fake_kv import expected_tokens
from tests.support.small_engine import SmallEngine
from tiering.policies.eviction import CachedBlock, ScoredEviction
from tiering.policies.registry import eviction_factory
from tiering.types import BlockId

PAGE = Path(__file__).parent.parent / "docs" / "policies.md"
SPEC = "a_policy_from_the_docs:DeepFirst"


class Witness:
    """Sees all that is asked of the example's instances, and what they are told."""

    def __init__(self, policy: type[ScoredEviction], patch: pytest.MonkeyPatch) -> None:
        self.chosen: list[tuple[int, BlockId]] = []
        self.gone: list[tuple[int, BlockId]] = []
        self.depths: list[int] = []
        victims, forget, score = policy.victims, policy.forget, policy.score

        def watch_victims(this: ScoredEviction, count: int, now: float) -> list[BlockId]:
            found = victims(this, count, now)
            self.chosen += ((id(this), block) for block in found)
            return found

        def watch_forget(this: ScoredEviction, block: BlockId) -> None:
            self.gone.append((id(this), block))
            forget(this, block)

        def watch_score(this: ScoredEviction, cached: CachedBlock) -> float:
            self.depths.append(cached.depth)
            return score(this, cached)

        patch.setattr(policy, "victims", watch_victims)
        patch.setattr(policy, "forget", watch_forget)
        patch.setattr(policy, "score", watch_score)


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[ScoredEviction]:
    """The class in the page's Python block, imported from a folder on the path."""
    (source,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(source.splitlines()) <= 20
    (tmp_path / "a_policy_from_the_docs.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    factory = eviction_factory(SPEC)
    assert isinstance(factory, type)
    assert issubclass(factory, ScoredEviction)
    return factory


def test_it_decides_what_an_engine_evicts(
    example: type[ScoredEviction], monkeypatch: pytest.MonkeyPatch
) -> None:
    witness = Witness(example, monkeypatch)
    engine = SmallEngine(num_blocks=12, host_blocks=14, disk_blocks=16, eviction=SPEC)
    prompts = {f"r{i}": [i * 17 + j for j in range(4 + 9 * (i % 4))] for i in range(12)}
    for request_id, prompt in prompts.items():
        engine.add(request_id, prompt)
    engine.run()
    engine.assert_idle()

    for request_id, prompt in prompts.items():
        assert engine.tokens[request_id] == expected_tokens(prompt, 8)
    pools = [pool for _, pool in engine.tiers.pools()]
    assert [pool.eviction_name for pool in pools] == ["deep_first"] * 3
    assert all(pool.evictions_total for pool in pools)
    # A second instance for each tier but the last ranks the blocks to be copied down.
    assert sum(pool.evictions_total for pool in pools) <= len(witness.chosen)
    assert set(witness.gone) <= set(witness.chosen)
    assert max(witness.depths) > 4


@pytest.mark.parametrize(
    ("eviction", "again", "num_cached_tokens"),
    [("lru", "short", 0), ("lru", "long", 32), (SPEC, "short", 8), (SPEC, "long", 24)],
)
def test_its_order_is_its_own(
    example: type[ScoredEviction], eviction: str, again: str, num_cached_tokens: int
) -> None:
    """A short prompt, a long one, and a third that takes the room of two named blocks."""
    prompts = {"short": [900] * 9, "long": list(range(33)), "third": list(range(100, 115))}
    engine = SmallEngine(num_blocks=12, eviction=eviction)
    for request_id in ("short", "long", "third"):
        engine.add(request_id, prompts[request_id], max_tokens=1)
        engine.run()
    engine.add("again", prompts[again], max_tokens=1)
    engine.run()
    assert engine.cached["again"] == num_cached_tokens
