"""What became of decode steps and prompts: the profile, the floor and the gap after each step of work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from benchmarks.bench_rows import number

PRODUCTS = "products"
ATTENTION = "attention"
ELEMENTWISE = "norms, activation"
SAMPLER = "sampler"
BATCH = "plan to tensors"
REST = "rest of the model"
ENGINE = "scheduling, messages"
PARTS = (PRODUCTS, ATTENTION, ELEMENTWISE, SAMPLER, BATCH, REST, ENGINE)
COLUMNS = (
    "after",
    "decode of batch × context, or prompt",
    "time",
    *PARTS,
    "floor: products",
    "floor: KV",
    "time ÷ floor",
)


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """One decode step, or a prompt of ``context`` tokens by itself, in ms, medians.

    ``step`` is of an engine with nothing timed in it. ``parts`` is of one with everything timed, at another
    moment: together they are not quite ``step``.
    """

    batch: int | None  # None: a prompt
    context: int
    step: float
    parts: dict[str, float]
    floor_products: float
    floor_kv: float
    weights: str  # the format that the floor's products are fastest in

    @property
    def gap(self) -> float:
        return self.step / (self.floor_products + self.floor_kv)


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """The profiles that were taken after a step of work."""

    after: str
    machine: str
    profiles: list[Profile]


def appended(stages: Sequence[Stage], stage: Stage) -> list[Stage]:
    """With ``stage`` at the end; one that was taken after the same step of work before is replaced."""
    if any(one.after == stage.after for one in stages):
        return [stage if one.after == stage.after else one for one in stages]
    return [*stages, stage]


def read_stages(path: Path) -> list[Stage]:
    """Those that are kept there; none if there is no such file yet."""
    if not path.exists():
        return []
    return msgspec.json.decode(path.read_bytes(), type=list[Stage])


def write_stages(path: Path, stages: Sequence[Stage]) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(stages), indent=2) + b"\n")


def cells(stages: Sequence[Stage]) -> Iterator[tuple[str, ...]]:
    """Rows of the table, in ms."""
    for stage in stages:
        for profile in stage.profiles:
            yield (
                stage.after,
                _name(profile),
                number(profile.step),
                *(number(profile.parts.get(part, 0.0)) for part in PARTS),
                f"{number(profile.floor_products)} ({profile.weights})",
                number(profile.floor_kv),
                f"{profile.gap:.2f}",
            )


def _name(profile: Profile) -> str:
    if profile.batch is None:
        return f"prompt of {profile.context:,}"
    return f"{profile.batch} × {profile.context:,}"
