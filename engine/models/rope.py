"""Rotary position embedding (Su et al. 2021) with the scalings of the Llama family, in float32."""

from __future__ import annotations

import math

import torch

from engine.config import ModelConfig, RopeScaling


def inverse_frequencies(config: ModelConfig) -> torch.Tensor:
    """Angle per position of each pair of dimensions, ``[head_dim / 2]`` float32."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    scaling = config.rope_scaling
    match scaling.kind:
        case "default":
            return frequencies
        case "linear":
            return frequencies / scaling.factor
        case "llama3":
            return _llama3(frequencies, scaling)
        case "factors":
            return frequencies / torch.tensor(scaling.factors, dtype=torch.float32)
    raise AssertionError(f"unknown rope scaling {scaling.kind}")


def _llama3(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Llama 3.1: long wavelengths are slowed by ``factor``, short ones kept, those between blended."""
    original = scaling.original_max_position_embeddings
    wavelengths = 2 * math.pi / frequencies
    slowed = torch.where(
        wavelengths > original / scaling.low_freq_factor, frequencies / scaling.factor, frequencies
    )
    smooth = (original / wavelengths - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    blended = (1 - smooth) * slowed / scaling.factor + smooth * slowed
    is_between = (wavelengths >= original / scaling.high_freq_factor) & (
        wavelengths <= original / scaling.low_freq_factor
    )
    return torch.where(is_between, blended, slowed)


class RopeTable:
    """Cosines and sines of every position of the window, computed once: ``[max_len, D / 2]`` float32."""

    def __init__(self, config: ModelConfig, max_model_len: int, device: torch.device) -> None:
        positions = torch.arange(max_model_len, dtype=torch.float32)
        angles = torch.outer(positions, inverse_frequencies(config))
        self._cos = angles.cos().to(device)
        self._sin = angles.sin().to(device)

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines ``[T, D / 2]`` of ``positions`` ``[T]``."""
        return self._cos[positions], self._sin[positions]
