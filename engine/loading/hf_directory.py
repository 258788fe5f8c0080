"""Weights from a Hugging Face directory: safetensors, sharded or not, or seeded random ones.

Runs on: step thread, once. Files are memory-mapped; one tensor is read at a time.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from engine.config import ConfigError, ModelConfig
from engine.loading.hf_config import read_json, read_model_config
from engine.loading.shapes import tensor_shapes
from engine.loading.source import TensorSource

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


def open_directory(path: Path, load_format: str, seed: int) -> tuple[ModelConfig, TensorSource]:
    """The shape of the model and its weights. Raises ConfigError."""
    config = read_model_config(path)
    if load_format == "dummy":
        return config, DummyWeights(config, seed)
    return config, SafetensorsWeights(path)


class SafetensorsWeights:
    """One ``model.safetensors``, or the shards that an index names."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file_of = self._find_files()

    def names(self) -> set[str]:
        return set(self._file_of)

    def size_bytes(self, name: str) -> int:
        file_name = self._file_of[name]
        try:
            with self._open(file_name) as file:
                view = file.get_slice(name)
                shape: list[int] = view.get_shape()
                return math.prod(shape) * _DTYPE_BYTES.get(view.get_dtype(), 1)
        except SafetensorError as error:
            raise self._unreadable(file_name, error) from error

    def load(self, name: str) -> torch.Tensor:
        file_name = self._file_of[name]
        try:
            with self._open(file_name) as file:
                tensor: torch.Tensor = file.get_tensor(name)
        except SafetensorError as error:
            raise self._unreadable(file_name, error) from error
        if not tensor.is_floating_point():
            raise ConfigError(
                f"{name} in {file_name} is {tensor.dtype}; only floating-point weights are supported."
            )
        return tensor

    def quantized(self, name: str) -> None:
        """Nothing: only floating-point weights are read."""

    def _find_files(self) -> dict[str, str]:
        if (self._directory / _INDEX).exists():
            weight_map = read_json(self._directory / _INDEX).get("weight_map")
            if not isinstance(weight_map, dict) or not weight_map:
                raise ConfigError(f"{self._directory / _INDEX} has no weight_map.")
            file_of = {str(name): str(file) for name, file in weight_map.items()}
            missing = {name for name in file_of.values() if not (self._directory / name).exists()}
            if missing:
                raise ConfigError(f"{self._directory} lacks the weight file {min(missing)}.")
            return file_of
        if not (self._directory / _SINGLE).exists():
            raise ConfigError(
                f"{self._directory} has no safetensors weights; convert it, or use --load-format dummy."
            )
        with self._open(_SINGLE) as file:
            return dict.fromkeys(file.keys(), _SINGLE)

    def _open(self, file_name: str) -> safe_open:
        try:
            return safe_open(self._directory / file_name, framework="pt")
        except (SafetensorError, OSError) as error:
            raise self._unreadable(file_name, error) from error

    def _unreadable(self, file_name: str, error: Exception) -> ConfigError:
        return ConfigError(f"{self._directory / file_name} cannot be read as safetensors: {error}.")


_DTYPE_BYTES: Mapping[str, int] = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


class DummyWeights:
    """Random weights for any configuration. A tensor depends on the seed and its name only."""

    _STANDARD_DEVIATION = 0.02

    def __init__(self, config: ModelConfig, seed: int) -> None:
        self._shapes = tensor_shapes(config)
        self._seed = seed

    def names(self) -> set[str]:
        return set(self._shapes)

    def size_bytes(self, name: str) -> int:
        return torch.Size(self._shapes[name]).numel() * 4

    def load(self, name: str) -> torch.Tensor:
        shape = self._shapes[name]
        if len(shape) == 1 and not name.endswith(".bias"):
            return torch.ones(shape)
        digest = hashlib.blake2b(f"{self._seed} {name}".encode(), digest_size=8).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "little"))
        return torch.empty(shape).normal_(0.0, self._STANDARD_DEVIATION, generator=generator)

    def quantized(self, name: str) -> None:
        """Nothing: they are drawn as they are."""
