"""What the next engine is asked to forget: all that the last one may not have done."""

from __future__ import annotations

from engine.forget_log import _MAX_TOKENS, ForgetLog
from engine.messages import ForgetKv


def forget(number: int, num_tokens: int = 1) -> ForgetKv:
    return ForgetKv(token_ids=(number,) * num_tokens, from_token=0)


def numbers(log: ForgetLog) -> list[int]:
    return [taken.token_ids[0] for taken in log.take()]


def test_what_was_asked_lately_comes_again_in_order() -> None:
    log = ForgetLog()
    for number, now_s in enumerate((0, 1, 100, 105, 109)):
        log.note(forget(number), now_s)
    assert numbers(log) == [2, 3, 4]
    assert numbers(log) == []


def test_what_is_asked_while_there_is_no_engine_is_kept_however_long_it_takes() -> None:
    log = ForgetLog()
    log.note(forget(0), 0)
    assert all(log.try_add(forget(number), 1000.0 * number) for number in (1, 2))
    assert numbers(log) == [0, 1, 2]


def test_of_too_much_the_oldest_is_dropped_unless_nobody_was_asked_yet() -> None:
    log = ForgetLog()
    for number in range(3):
        log.note(forget(number, _MAX_TOKENS // 2), 0)
    assert not log.try_add(forget(3), 0)
    assert numbers(log) == [1, 2]
    assert log.try_add(forget(3, _MAX_TOKENS), 0)
    assert not log.try_add(forget(4), 0)
    log.note(forget(5, 2 * _MAX_TOKENS), 0)
    assert numbers(log) == [5]
