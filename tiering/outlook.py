"""What is known of the future of a named block, and how it was used so far. Plain values; no clock."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Keep:
    """A block is to go after all that nobody keeps, until ``for_s`` seconds after its last use.

    ``owner`` keeps at most ``quota`` of a tier's blocks, 0 to 1.
    """

    owner: str
    for_s: float
    quota: float


@dataclass(frozen=True, slots=True)
class Outlook:
    """What those who used a block have said of it.

    ``expected_return_at``: when its session is expected to be back, in seconds; None if nobody knows.
    ``stays_off_disk``: it is never to be copied to disk.
    """

    expected_return_at: float | None = None
    keep: Keep | None = None
    stays_off_disk: bool = False

    def returning_at(self, expected_return_at: float | None) -> Outlook:
        """The same, of a session that is expected at that time."""
        if expected_return_at == self.expected_return_at:
            return self
        return Outlook(expected_return_at, self.keep, self.stays_off_disk)

    def joined(self, later: Outlook) -> Outlook:
        """With what a later use says: the latest expectation, the longer of two keeps, the stricter limit."""
        keep, expected = later.keep, later.expected_return_at
        if self.keep is not None and (keep is None or keep.for_s < self.keep.for_s):
            keep = self.keep
        if expected is None:
            expected = self.expected_return_at
        stays_off_disk = self.stays_off_disk or later.stays_off_disk
        if (expected, keep, stays_off_disk) == (
            later.expected_return_at,
            later.keep,
            later.stays_off_disk,
        ):
            return later
        return Outlook(expected, keep, stays_off_disk)


NO_OUTLOOK = Outlook()


class BlockUse:
    """How a named block of one tier was used. ``was_stored``: it needs no copy to the tier below."""

    __slots__ = ("last_used", "num_hits", "outlook", "was_stored")

    def __init__(self, last_used: float, outlook: Outlook, *, was_stored: bool) -> None:
        self.last_used = last_used
        self.outlook = outlook
        self.was_stored = was_stored
        self.num_hits = 0

    @property
    def kept_until(self) -> float | None:
        """Until when it is kept, if nobody uses it again; None if it is not."""
        keep = self.outlook.keep
        return None if keep is None else self.last_used + keep.for_s

    def renew(self, now: float, outlook: Outlook = NO_OUTLOOK) -> None:
        """It is used, by somebody with that outlook. That does not revive a keep that was over."""
        kept_until = self.kept_until
        if kept_until is not None and kept_until <= now:
            old = self.outlook
            self.outlook = Outlook(old.expected_return_at, None, old.stays_off_disk)
        self.last_used = now
        if outlook is not NO_OUTLOOK:
            self.outlook = self.outlook.joined(outlook)
