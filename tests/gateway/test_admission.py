"""Permits: counted, refused at once past the bound, released by scope."""

from __future__ import annotations

import asyncio

import pytest

from gateway.admission import Admission
from gateway.errors import ApiError
from gateway.service_rate import ServiceRate
from gateway.shared_room import Holder

ANY = Holder()


async def test_one_permit_too_many_is_429_with_a_hint() -> None:
    admission = Admission(2)
    with admission.permit(ANY), admission.permit(ANY):
        assert admission.in_flight == 2
        with pytest.raises(ApiError) as caught, admission.permit(ANY):
            pass
        assert caught.value.status == 429
        assert caught.value.retry_after_s is not None
    assert admission.in_flight == 0


async def test_a_permit_is_released_whatever_happens() -> None:
    admission = Admission(1)
    for error in (RuntimeError, asyncio.CancelledError):
        with pytest.raises(error), admission.permit(ANY):
            raise error
    with admission.permit(ANY):
        pass


async def test_idle_is_when_the_last_permit_goes() -> None:
    admission = Admission(2)
    await admission.wait_idle()
    with admission.permit(ANY):
        waiter = asyncio.create_task(admission.wait_idle())
        await asyncio.sleep(0)
        assert not waiter.done()
    await asyncio.wait_for(waiter, 5)


async def test_tokens_are_bounded_and_released_too() -> None:
    admission = Admission(10, max_tokens=100)
    with admission.permit(ANY, num_tokens=60):
        with admission.permit(ANY, num_tokens=40):
            assert admission.tokens == 100
            with pytest.raises(ApiError) as caught, admission.permit(ANY, num_tokens=1):
                pass
        assert (caught.value.status, admission.tokens, admission.in_flight) == (429, 60, 1)
        with pytest.raises(ApiError) as caught, admission.permit(ANY, num_tokens=101):
            pass
    assert (caught.value.status, caught.value.retry_after_s) == (400, None)  # it could never come in
    assert admission.tokens == 0


async def test_the_hint_is_when_enough_will_have_been_served() -> None:
    rate = ServiceRate()
    rate.note_step(100, 1.0)
    admission = Admission(4, max_tokens=2000, rate=rate)
    with admission.permit(ANY, 4, num_tokens=1600):
        with pytest.raises(ApiError) as caught, admission.permit(ANY, 3):
            pass
        assert caught.value.retry_after_s == 12  # three places of 400 tokens each
    admission = Admission(4, max_tokens=2000, rate=rate)
    with admission.permit(ANY, num_tokens=1600):
        with pytest.raises(ApiError) as caught, admission.permit(ANY, num_tokens=1100):
            pass
        assert caught.value.retry_after_s == 7
