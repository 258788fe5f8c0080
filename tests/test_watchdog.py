"""Stalled means pending work without steps, not idleness and not a slow load."""

from __future__ import annotations

from engine.watchdog import ProgressWatch


def test_idle_is_never_stalled() -> None:
    watch = ProgressWatch(5)
    assert not watch.is_stalled(1e9)


def test_pending_without_steps_is_stalled_after_the_timeout() -> None:
    watch = ProgressWatch(5)
    watch.note_pending(True, 100)
    watch.note_pending(True, 104)
    assert not watch.is_stalled(105)
    assert watch.is_stalled(105.1)


def test_steps_and_idleness_start_the_clock_anew() -> None:
    watch = ProgressWatch(5)
    watch.note_pending(True, 100)
    watch.note_step(1, 104)
    assert not watch.is_stalled(108)
    watch.note_step(1, 108)
    assert watch.is_stalled(109.1)
    watch.note_pending(False, 110)
    assert not watch.is_stalled(200)
    watch.note_pending(True, 200)
    assert not watch.is_stalled(204)
