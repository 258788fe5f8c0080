"""A checkpoint's tensors, held to what the config says: each is there, and of its shape.

Runs on: step thread, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from engine.config import ConfigError, ModelConfig
from engine.loading.shapes import LM_HEAD, tensor_shapes
from engine.loading.source import TensorSource
from engine.packed.layout import QuantizedMatrix

Progress = Callable[[str, int, int], None]


class ExpectedTensors:
    """The tensors of ``source`` that ``config`` has, and how far reading ``wanted`` of them has come.

    Calls ``on_progress(phase, done_bytes, total_bytes)`` for each tensor that is read. A name that is
    missing or unknown raises ConfigError at once, another shape when it is read; both name the tensor.
    """

    def __init__(
        self,
        config: ModelConfig,
        source: TensorSource,
        wanted: Iterable[str],
        phase: str,
        on_progress: Progress,
    ) -> None:
        self._source = source
        self._phase = phase
        self._on_progress = on_progress
        self.shapes = tensor_shapes(config)
        self._check_names(may_have_head=config.tie_word_embeddings)
        self._total_bytes = sum(source.size_bytes(name) for name in wanted)
        self._done_bytes = 0

    def load(self, name: str) -> torch.Tensor:
        """As ``TensorSource.load``."""
        tensor = self._source.load(name)
        self._check_shape(name, tuple(tensor.shape))
        self._count(name)
        return tensor

    def quantized(self, name: str) -> QuantizedMatrix | None:
        """As ``TensorSource.quantized``."""
        matrix = self._source.quantized(name)
        if matrix is not None:
            self._check_shape(name, (matrix.num_outputs, matrix.num_inputs))
        self._count(name)
        return matrix

    def _count(self, name: str) -> None:
        self._done_bytes += self._source.size_bytes(name)
        self._on_progress(self._phase, self._done_bytes, self._total_bytes)

    def _check_shape(self, name: str, found: tuple[int, ...]) -> None:
        if found != self.shapes[name]:
            raise ConfigError(
                f"The weight {name} has the shape {found}; the config asks for {self.shapes[name]}."
            )

    def _check_names(self, *, may_have_head: bool) -> None:
        present = self._source.names()
        missing = self.shapes.keys() - present
        if missing:
            raise ConfigError(f"The checkpoint lacks {len(missing)} weights, the first is {min(missing)}.")
        ignored = {LM_HEAD} if may_have_head else set()
        unknown = {
            name
            for name in present - self.shapes.keys() - ignored
            if not name.endswith("rotary_emb.inv_freq")
        }
        if unknown:
            raise ConfigError(
                f"The checkpoint has {len(unknown)} weights that this architecture does not use,"
                f" the first is {min(unknown)}; its config.json may be of another model."
            )
