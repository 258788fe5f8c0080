"""Permits: counted, refused at once past the bound, released by scope."""

from __future__ import annotations

import asyncio

import pytest

from gateway.admission import Admission
from gateway.errors import ApiError


async def test_one_permit_too_many_is_429_with_a_hint() -> None:
    admission = Admission(2)
    with admission.permit(), admission.permit():
        assert admission.in_flight == 2
        with pytest.raises(ApiError) as caught, admission.permit():
            pass
        assert caught.value.status == 429
        assert caught.value.retry_after_s is not None
    assert admission.in_flight == 0


async def test_a_permit_is_released_whatever_happens() -> None:
    admission = Admission(1)
    for error in (RuntimeError, asyncio.CancelledError):
        with pytest.raises(error), admission.permit():
            raise error
    with admission.permit():
        pass


async def test_idle_is_when_the_last_permit_goes() -> None:
    admission = Admission(2)
    await admission.wait_idle()
    with admission.permit():
        waiter = asyncio.create_task(admission.wait_idle())
        await asyncio.sleep(0)
        assert not waiter.done()
    await asyncio.wait_for(waiter, 5)
