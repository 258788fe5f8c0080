"""Sizes of graphs, and which of them a batch gets."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.execution.cuda_graphs import DecodeGraphs, Graph, graph_sizes


class ScriptedRecorder:
    """Runs work as often as a real one does; ``fails_at`` is the capture that raises."""

    def __init__(self, fails_at: int | None = None) -> None:
        self._fails_at = fails_at
        self.num_recorded = 0

    def record(self, work: Callable[[], None]) -> Graph:
        if self.num_recorded == self._fails_at:
            raise RuntimeError("out of memory")
        self.num_recorded += 1
        work()
        work()
        return ScriptedGraph(work)


class ScriptedGraph:
    def __init__(self, work: Callable[[], None]) -> None:
        self.replay = work


def make(num_seqs: int, recorder: ScriptedRecorder) -> tuple[DecodeGraphs, list[tuple[str, int]]]:
    calls: list[tuple[str, int]] = []
    return (
        DecodeGraphs(
            graph_sizes(num_seqs),
            lambda size: calls.append(("prepare", size)),
            lambda size: calls.append(("work", size)),
            recorder,
        ),
        calls,
    )


@pytest.mark.parametrize(
    ("num_seqs", "sizes"),
    [
        (1, (1,)),
        (3, (1, 2, 3)),
        (8, (1, 2, 4, 8)),
        (20, (1, 2, 4, 8, 16, 20)),
        (300, (1, 2, 4, *range(8, 257, 8), 288, 300)),
    ],
)
def test_sizes(num_seqs: int, sizes: tuple[int, ...]) -> None:
    assert graph_sizes(num_seqs) == sizes


def test_every_batch_has_a_size_that_it_nearly_fills() -> None:
    for most in (1, 5, 64, 256, 1000):
        graphs, _ = make(most, ScriptedRecorder())
        graphs.capture(lambda *_: None)
        for num_seqs in range(1, most + 1):
            size = graphs.size_for(num_seqs)
            assert size is not None and num_seqs <= size <= max(num_seqs * 9 / 8 + 7, 4)
        assert graphs.size_for(most + 1) is None


def test_the_largest_is_captured_first_and_prepared_before() -> None:
    graphs, calls = make(8, ScriptedRecorder())
    assert graphs.size_for(1) is None
    progress: list[tuple[str, int, int]] = []
    graphs.capture(lambda *call: progress.append(call))
    assert calls == [
        call for size in (8, 4, 2, 1) for call in (("prepare", size), ("work", size), ("work", size))
    ]
    assert progress == [("graphs", done, 4) for done in (1, 2, 3, 4)]
    calls.clear()
    graphs.replay(4)
    assert calls == [("work", 4)]


def test_a_capture_that_fails() -> None:
    graphs, _ = make(8, ScriptedRecorder(fails_at=2))
    with pytest.raises(RuntimeError, match="out of memory"):
        graphs.capture(lambda *_: None)
