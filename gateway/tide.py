"""What the tide map shows: which sessions a tenant has used lately, and the figures it may know.

Pure; time is passed in, in seconds of a clock that never goes back. A tenant is told of its own sessions, its
own pace and its own waits. Figures of the whole house are told to nobody who shares it: in a house of two,
the sum less one's own is the other's. What they share shows only in one's own cells going down.

Of a session's last response the beginning of its id is told: enough to know one's own again, too little to
ask for it, which matters where everybody is one tenant.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import msgspec

from engine.stats import EngineStats, SessionKv

MAX_SESSIONS = 32
"""Of one tenant; the one that was used longest ago goes first."""
MAX_TENANTS = 1024
_SHOWN_ID_CHARS = 17  # of "resp_" and 32 hex digits: twelve of them, and 80 bits to guess
_RATE_WINDOW_S = 2.0
_UP, _DOWN = ("swap_in", "promote"), ("swap_out", "demote")


@dataclass(slots=True)
class SessionUse:
    """``number`` tells a tenant's sessions apart; ``name`` is the engine's."""

    number: int
    name: str
    response_id: str


class _OfTenant:
    def __init__(self) -> None:
        self.sessions: OrderedDict[str, SessionUse] = OrderedDict()  # the last used one last
        self.num_seen = 0


class SessionRegister:
    """Sessions by tenant, as they are used. Bounds: ``MAX_SESSIONS`` of each of ``MAX_TENANTS``."""

    def __init__(self) -> None:
        self._tenants: OrderedDict[str, _OfTenant] = OrderedDict()

    def note(self, tenant: str, session: str, response_id: str) -> None:
        """A turn of the session begins."""
        known = self._tenants.setdefault(tenant, _OfTenant())
        self._tenants.move_to_end(tenant)
        use = known.sessions.get(session)
        if use is None:
            known.num_seen += 1
            use = known.sessions[session] = SessionUse(known.num_seen, session, response_id)
        use.response_id = response_id
        known.sessions.move_to_end(session)
        if len(known.sessions) > MAX_SESSIONS:
            known.sessions.popitem(last=False)
        if len(self._tenants) > MAX_TENANTS:
            self._tenants.popitem(last=False)

    def forget(self, tenant: str, response_id: str) -> None:
        """A response was deleted; a session that ended with it is shown no more."""
        known = self._tenants.get(tenant)
        if known is None:
            return
        for name, use in tuple(known.sessions.items()):
            if use.response_id == response_id:
                del known.sessions[name]

    def recent(self, tenant: str) -> Sequence[SessionUse]:
        """The last used first."""
        known = self._tenants.get(tenant)
        return () if known is None else tuple(reversed(known.sessions.values()))


class Rate:
    """How fast a running total grows, over the last two seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque()

    def add(self, now_s: float, total: float) -> float:
        """Per second. A total that is less than before is of an engine that was started again."""
        samples = self._samples
        if samples and total < samples[-1][1]:
            samples.clear()
        samples.append((now_s, total))
        while len(samples) > 2 and samples[1][0] <= now_s - _RATE_WINDOW_S:
            samples.popleft()
        (first_s, first), (last_s, last) = samples[0], samples[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else 0.0


# ---- what is sent ------------------------------------------------------------------------------


class TideSession(msgspec.Struct, kw_only=True):
    """``cells`` are the engine's, in runs: ``3D2h`` is ``DDDhh``. ``response`` begins the last one's id."""

    id: int
    response: str
    num_tokens: int
    cells: str


class OwnFigures(msgspec.Struct, kw_only=True):
    """Of the tenant: tokens generated, its last wait for a first token, answers that run or wait."""

    tokens_per_s: float
    ttft_ms: float | None
    answers: int


class TierBlocks(msgspec.Struct, kw_only=True):
    in_use: int
    copying: int
    cached: int
    free: int


class HouseFigures(msgspec.Struct, kw_only=True):
    """Of everything; ``hit_tokens`` by tier, since the engine started."""

    running: int
    waiting: int
    swapped: int
    bytes_up_per_s: int
    bytes_down_per_s: int
    hit_tokens: dict[str, int]
    tiers: dict[str, TierBlocks]


class TideSnapshot(msgspec.Struct, kw_only=True):
    """``house`` is null where tenants share it. ``condition`` is the word that ``/health`` has."""

    condition: str
    block_tokens: int
    sessions: list[TideSession]
    own: OwnFigures
    house: HouseFigures | None


def shown_sessions(uses: Iterable[SessionUse], found: Mapping[str, SessionKv]) -> list[TideSession]:
    """``found`` is what the engine knows, by name; of what it was not asked about nothing is shown."""
    return [
        TideSession(
            id=use.number,
            response=use.response_id[:_SHOWN_ID_CHARS],
            num_tokens=found[use.name].num_tokens,
            cells=in_runs(found[use.name].cells),
        )
        for use in uses
        if use.name in found
    ]


def in_runs(cells: str) -> str:
    """``DDDhh`` as ``3D2h``."""
    return "".join(f"{len(list(run))}{cell}" for cell, run in groupby(cells))


class HouseRates:
    """Figures of the house from one snapshot of the engine's to the next."""

    def __init__(self) -> None:
        self._up = Rate()
        self._down = Rate()

    def figures(self, stats: EngineStats, now_s: float) -> HouseFigures:
        return HouseFigures(
            running=stats.num_running,
            waiting=stats.num_waiting,
            swapped=stats.num_swapped,
            bytes_up_per_s=round(self._up.add(now_s, _moved_bytes(stats, _UP))),
            bytes_down_per_s=round(self._down.add(now_s, _moved_bytes(stats, _DOWN))),
            hit_tokens={name: tier.hit_tokens_total for name, tier in stats.tiers.items()},
            tiers={
                name: TierBlocks(
                    in_use=tier.blocks_in_use,
                    copying=tier.blocks_copying,
                    cached=tier.blocks_cached,
                    free=tier.blocks_free,
                )
                for name, tier in stats.tiers.items()
            },
        )


def _moved_bytes(stats: EngineStats, kinds: Iterable[str]) -> int:
    return sum(stats.transfers[kind].num_bytes for kind in kinds if kind in stats.transfers)
