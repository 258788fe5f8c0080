"""Places of the cap, in virtual time: who gets them, and what each waited."""

from __future__ import annotations

import asyncio

import pytest

from loadtest.measuring.cap import Cap
from tests.support.virtual_time import VirtualClock, run_virtually


def test_places_go_in_the_order_of_asking_and_each_wait_is_told() -> None:
    async def main() -> None:
        clock, got = VirtualClock(), list[tuple[str, float, float]]()
        cap = Cap(2, clock)

        async def hold(name: str, asks_at: float, for_s: float) -> None:
            await clock.sleep_until(asks_at)
            waited_s = await cap.enter()
            got.append((name, clock.now(), waited_s))
            await clock.sleep_until(clock.now() + for_s)
            cap.leave()

        holds = (("a", 0.0, 4.0), ("b", 1.0, 5.0), ("c", 2.0, 1.0), ("d", 3.0, 1.0), ("e", 9.0, 1.0))
        await asyncio.gather(*(hold(*each) for each in holds))
        assert got == [("a", 0, 0), ("b", 1, 0), ("c", 4, 2), ("d", 5, 2), ("e", 9, 0)]

    run_virtually(main())


def test_what_passes_after_a_place_was_given_is_not_the_caps_doing() -> None:
    async def main() -> None:
        clock = VirtualClock()
        cap = Cap(1, clock)
        await cap.enter()
        waiting = asyncio.create_task(cap.enter())
        await clock.sleep_until(1.0)
        cap.leave()
        clock.spend(7.0)
        assert await waiting == 1.0

    run_virtually(main())


@pytest.mark.parametrize("was_given", [False, True])
def test_a_place_for_somebody_who_gave_up_goes_to_the_next(was_given: bool) -> None:
    async def main() -> None:
        clock = VirtualClock()
        cap = Cap(1, clock)
        await cap.enter()
        gone, next_one = asyncio.create_task(cap.enter()), asyncio.create_task(cap.enter())
        await clock.sleep_until(1.0)
        if was_given:
            cap.leave()
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        if not was_given:
            cap.leave()
        assert await next_one == 1.0
        cap.leave()
        assert await cap.enter() == 0.0  # all places are there again, and
        with pytest.raises(TimeoutError):  # no more than were
            await asyncio.wait_for(cap.enter(), 1.0)

    run_virtually(main())


def test_no_limit_is_no_wait() -> None:
    async def main() -> None:
        cap = Cap(None, VirtualClock())
        assert [await cap.enter() for _ in range(1000)] == [0.0] * 1000

    run_virtually(main())
