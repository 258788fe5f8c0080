"""Each connection is an open file, of which a process may have only so many.

A request has one, and an answer that has ended may keep another until its response has: where the system lets
a process have them, there are two for each.
"""

from __future__ import annotations

import resource

_OWN = 64  # files that are open whatever is measured


class OpenFilesError(Exception):
    """More connections are needed than this process may have. The message is a plain sentence."""


def allow_connections(number: int) -> None:
    """Raise this process's limit as far as need be. Raises OpenFilesError if the system does not let it."""
    needed, wanted = number + _OWN, 2 * number + _OWN
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _allows(soft, wanted):
        return
    if not _allows(hard, needed):
        raise OpenFilesError(
            f"{number} connections at a time need {needed} open files, and the system lets a process have"
            f" {hard}. Raise that limit (ulimit -Hn), or have at most {max(hard - _OWN, 0)} at a time."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if _allows(hard, wanted) else hard, hard))


def _allows(limit: int, needed: int) -> bool:
    return limit == resource.RLIM_INFINITY or limit >= needed
