"""Where the time of a call goes: parts that are timed, each less what was timed within it.

A part is timed by standing in for what does it: a callable, an object's methods, or a name of a module.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any


class Stopwatch:
    """``seconds`` by part, since they were last taken. One thread."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._within: list[float] = []  # of each call under way: what was timed in it

    def timed(self, part: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """``work``, whose time is added to ``part``."""

        def run(*args: Any, **kwargs: Any) -> Any:
            self._within.append(0.0)
            started = self._clock()
            try:
                return work(*args, **kwargs)
            finally:
                took = self._clock() - started
                self._seconds[part] += took - self._within.pop()
                if self._within:
                    self._within[-1] += took

        return run

    def take(self) -> dict[str, float]:
        """The seconds so far; from now on it counts anew."""
        taken = dict(self._seconds)
        self._seconds.clear()
        return taken


class Timed:
    """An object with some of its methods timed; for all else it is the object. A call of it is timed too."""

    def __init__(self, inner: Any, watch: Stopwatch, part: str, *methods: str) -> None:
        self._inner = inner
        self._methods = {name: watch.timed(part, getattr(inner, name)) for name in methods}
        self._call = watch.timed(part, inner) if callable(inner) else None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        assert self._call is not None
        return self._call(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return self._methods[name] if name in self._methods else getattr(self._inner, name)


@contextlib.contextmanager
def standing_in(owner: Any, name: str, stand_in: Any) -> Iterator[None]:
    """``owner.name`` is ``stand_in`` until the scope ends."""
    original = getattr(owner, name)
    setattr(owner, name, stand_in)
    try:
        yield
    finally:
        setattr(owner, name, original)
