"""How urgent a request is: OpenAI's ``service_tier`` is its class, vLLM's ``priority`` orders within it.

Pure. The engine knows one number, the lower first, and looks at it among the requests of one tenant only:
urgency takes nothing from anybody else. Who may not ask for more than the default is served as by
default, and the answer says so, as OpenAI does it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from gateway.errors import bad_request, unsupported
from gateway.openai.ranges import MAX_PRIORITY, check_count
from gateway.openai.wire import GenerationFields


class ServiceTier(enum.StrEnum):
    """The better ones first."""

    PRIORITY = "priority"
    DEFAULT = "default"
    FLEX = "flex"


_TIERS = {"auto": ServiceTier.DEFAULT, **{tier.value: tier for tier in ServiceTier}}
_CLASSES = {ServiceTier.PRIORITY: -1, ServiceTier.DEFAULT: 0, ServiceTier.FLEX: 1}


@dataclass(frozen=True, slots=True)
class Service:
    """``priority``: within the tier, the lower first. ``is_told``: the answer says which tier it was."""

    tier: ServiceTier = ServiceTier.DEFAULT
    priority: int = 0
    is_told: bool = False

    @property
    def engine_priority(self) -> int:
        """One number for both: any priority of a better tier is below all of the next."""
        return _CLASSES[self.tier] * (2 * MAX_PRIORITY + 1) + self.priority

    def without_priority(self) -> Service:
        """The same for a tenant that may not ask for more than the default; less it may."""
        tier = ServiceTier.DEFAULT if self.tier is ServiceTier.PRIORITY else self.tier
        return replace(self, tier=tier, priority=max(self.priority, 0))


DEFAULT_SERVICE = Service()


def check_service(wire: GenerationFields) -> Service:
    """Raises ApiError."""
    name = wire.service_tier
    if name == "scale":
        raise unsupported("service_tier", "The service tier 'scale' is capacity bought at OpenAI.")
    tier = ServiceTier.DEFAULT if name is None else _TIERS.get(name)
    if tier is None:
        raise bad_request("service_tier", f"'service_tier' must be one of {', '.join(_TIERS)}.")
    priority = check_count(wire.priority, MAX_PRIORITY, "priority", low=-MAX_PRIORITY)
    return Service(tier, priority or 0, is_told=name is not None)
