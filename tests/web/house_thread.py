"""A gateway over the scripted engine on an event loop of its own, for tests that drive a browser."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import uvloop

from engine.scripted import Script
from tests.gateway.house import IM_END, House, open_house, text_ids

T = TypeVar("T")
_TIMEOUT_S = 30


class HouseThread:
    """``call`` runs something on the house's loop; what is only read can be read from anywhere."""

    def __init__(self, tokenizer_dir: str, **options: Any) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="house", daemon=True)
        self._thread.start()
        self.house: House = self.call(open_house(tokenizer_dir, **options))

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_TIMEOUT_S)

    def run(self, work: Any, *args: Any) -> None:
        """Call a plain function there."""

        async def there() -> None:
            work(*args)

        self.call(there())

    def say(self, text: str, **fields: Any) -> None:
        """The next request is answered with this text, a few bytes a step."""
        script = Script(token_ids=tuple(text_ids(text)), stop_token_id=IM_END, per_step=4, **fields)
        self.run(self.house.script, script)

    def say_without_end(self, text: str) -> None:
        self.run(self.house.script, Script(token_ids=tuple(text_ids(text)), endless=True, per_step=4))

    @property
    def prompts(self) -> list[str]:
        """All that the engine was asked, as text."""
        submitted = self.house.engine.record.submitted
        return [bytes(t for t in add.prompt_token_ids if t < 256).decode() for add in submitted]

    def close(self) -> None:
        self.call(self.house.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_TIMEOUT_S)
        self._loop.close()


@contextlib.contextmanager
def house_thread(tokenizer_dir: str, **options: Any) -> Iterator[HouseThread]:
    thread = HouseThread(tokenizer_dir, **options)
    try:
        yield thread
    finally:
        thread.close()
