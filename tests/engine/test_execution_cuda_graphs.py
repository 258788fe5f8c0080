"""Sizes of graphs, and which of them a batch gets."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator

import pytest
import torch

from engine.execution.cuda_graphs import CudaRecorder, DecodeGraphs, Graph, graph_sizes


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


class ScriptedCuda:
    """Notes what is done on which stream, in place of ``torch.cuda``, whose signatures it keeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, fails: bool = False) -> None:
        self.notes: list[tuple[str, str]] = []
        self.current = "compute"
        self._fails = fails
        self._signature = inspect.signature(torch.cuda.graph)
        for name in ("Stream", "CUDAGraph", "stream", "graph", "current_stream", "graph_pool_handle"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))

    def note(self, what: str) -> None:
        self.notes.append((self.current, what))

    def Stream(self, device: torch.device) -> ScriptedStream:
        return ScriptedStream(self, "own")

    def CUDAGraph(self) -> ScriptedGraph:
        return ScriptedGraph(lambda: self.note("replay"))

    def current_stream(self, device: torch.device) -> ScriptedStream:
        return ScriptedStream(self, self.current)

    def graph_pool_handle(self) -> tuple[int, int]:
        return (0, 7)

    @contextlib.contextmanager
    def stream(self, stream: ScriptedStream) -> Iterator[None]:
        before, self.current = self.current, stream.name
        try:
            yield
        finally:
            self.current = before

    @contextlib.contextmanager
    def graph(self, *arguments: object, **settings: object) -> Iterator[None]:
        found = self._signature.bind(*arguments, **settings).arguments
        assert found["pool"] == (0, 7) and found["capture_error_mode"] == "thread_local"
        self.current = found["stream"].name
        self.note("begin")
        yield
        if self._fails:  # and leaves its stream the current one
            raise RuntimeError("the capture failed")
        self.note("end")
        self.current = "compute"


class ScriptedStream:
    device = torch.device("cpu")

    def __init__(self, cuda: ScriptedCuda, name: str) -> None:
        self._cuda = cuda
        self.name = name

    def wait_stream(self, other: ScriptedStream) -> None:
        self._cuda.note(f"{self.name} waits for {other.name}")


def test_work_runs_once_on_the_stream_on_which_it_is_captured_then(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = ScriptedCuda(monkeypatch)
    CudaRecorder(torch.device("cpu")).record(lambda: cuda.note("work")).replay()
    assert cuda.notes == [
        ("compute", "own waits for compute"),
        ("own", "work"),
        ("compute", "compute waits for own"),
        ("own", "begin"),
        ("own", "work"),
        ("own", "end"),
        ("compute", "replay"),
    ]


def test_a_failed_capture_leaves_the_stream_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = ScriptedCuda(monkeypatch, fails=True)
    with pytest.raises(RuntimeError, match="the capture failed"):
        CudaRecorder(torch.device("cpu")).record(lambda: None)
    assert cuda.current == "compute"
