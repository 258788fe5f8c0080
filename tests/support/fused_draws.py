"""What draws on the device must be, in numpy: which tokens are kept, their noise, and who is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import triton.language as tl

from engine.execution import sampler
from engine.fused.configs import limits_launch
from engine.fused.nucleus import nucleus
from engine.fused.random_bits import exponential
from engine.fused.sampling import draw
from engine.kernels.jit import jit
from engine.messages import SamplingParams
from engine.schedule import SampleSpec

Floats = npt.NDArray[np.float64]
MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
BLOCK = 1024


@dataclass(frozen=True)
class Setting:
    """How one row is drawn."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    position: int = 5

    @property
    def spec(self) -> SampleSpec:
        params = SamplingParams(
            max_tokens=1,
            seed=self.seed,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
        )
        return SampleSpec(params, (self.seed,), self.position, (), (), ())


def tensors(settings: Sequence[Setting], device: torch.device | str = "cpu") -> tuple[torch.Tensor, ...]:
    """What ``draw`` wants beside logits."""

    def column(name: str, dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor([getattr(setting, name) for setting in settings], dtype=dtype, device=device)

    seeds = np.array([setting.seed for setting in settings], dtype=np.uint64).view(np.int64)
    return (
        column("temperature", torch.float32), column("top_k", torch.int32), column("top_p", torch.float32),
        column("min_p", torch.float32), torch.from_numpy(seeds).to(device), column("position", torch.int32),
    )  # fmt: skip


def tokens(logits: torch.Tensor, settings: Sequence[Setting]) -> list[int]:
    return draw(logits, *tensors(settings, logits.device)).tolist()


# ---- noise -----------------------------------------------------------------------------------------


def mix(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def key_of(seed: int, position: int) -> int:
    return mix((mix((seed + GOLDEN) & MASK) + (position + 1) * GOLDEN) & MASK)


def bits_of(key: int, count: int) -> npt.NDArray[np.uint64]:
    """The upper 32 bits of the first ``count`` numbers of SplitMix64 from ``key`` on."""
    x = np.uint64(key) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GOLDEN)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))) >> np.uint64(32)


def exponentials(key: int, count: int) -> Floats:
    """One number a token, exactly as defined, in float64."""
    u = (bits_of(key, count).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32)
    return -np.log1p(-np.minimum(u, np.float32(1 - 2**-24)).astype(np.float64))


@jit(varying=["keys"])
def exponential_kernel(keys: tl.tensor, out: tl.tensor, SIZE: tl.constexpr) -> None:
    row = tl.program_id(0)
    numbers = tl.arange(0, SIZE)
    key = tl.load(keys + row).to(tl.uint64)
    tl.store(out + row * SIZE + numbers, exponential(key, numbers))


def kernel_exponentials(keys: Sequence[int], device: str = "cpu") -> torch.Tensor:
    """The device's, of the first ``BLOCK`` tokens: ``[len(keys), BLOCK]``."""
    out = torch.full((len(keys), BLOCK), float("nan"), device=device)
    signed = torch.from_numpy(np.array(keys, dtype=np.uint64).view(np.int64)).to(device)
    exponential_kernel[(len(keys),)](signed, out, SIZE=BLOCK, num_warps=4)
    return out


# ---- what is kept ----------------------------------------------------------------------------------


def weights_of(row: torch.Tensor, setting: Setting) -> Floats:
    """Beside the likeliest; distances are rounded as they are on the device."""
    distance = (row.amax() - row).double().cpu().numpy()
    weights: Floats = np.exp(-distance / max(setting.temperature, 1e-30))
    return weights


def kept_tokens(row: torch.Tensor, setting: Setting) -> npt.NDArray[np.bool_]:
    """In the order of distance and id, by a stable sort and running sums."""
    weights = weights_of(row, setting)
    distance = (row.amax() - row).cpu().numpy()
    order = np.argsort(distance, kind="stable")[: setting.top_k or None]
    order = order[weights[order] >= np.float32(setting.min_p)]
    running = np.cumsum(weights[order])
    target = np.float64(np.float32(setting.top_p)) * running[-1] if setting.top_p < 1 else np.inf
    enough = (running - weights[order] < target) | (np.arange(len(order)) == 0)
    kept = np.zeros(len(weights), dtype=bool)
    kept[order[enough]] = True
    return kept


def is_near_edge(row: torch.Tensor, setting: Setting, tolerance: float = 2e-5) -> bool:
    """Whether rounding may add or drop a token of the top-p."""
    weights = weights_of(row, setting)
    distance = (row.amax() - row).cpu().numpy()
    order = np.argsort(distance, kind="stable")[: setting.top_k or None]
    near_floor = np.abs(weights - setting.min_p) < 1e-5 * setting.min_p
    order = order[weights[order] >= setting.min_p]
    running = np.cumsum(weights[order])
    near = np.abs(running - setting.top_p * running[-1]) < tolerance * running[-1]
    return bool(near_floor.any() or (setting.top_p < 1 and near.any()))


def sampler_keeps(row: torch.Tensor, setting: Setting) -> npt.NDArray[np.bool_]:
    """What the sampler of rows with penalties and masks would leave."""
    probabilities = torch.softmax((row - row.amax()).cpu()[None] / setting.temperature, dim=1)
    kept: npt.NDArray[np.bool_] = sampler._without_unlikely(probabilities, [setting.spec])[0].numpy() > 0
    return kept


@jit(varying=["settings"])
def nucleus_kernel(
    logits: tl.tensor, settings: tl.tensor, out: tl.tensor, VOCAB: tl.constexpr, TILE: tl.constexpr
) -> None:
    row = tl.program_id(0)
    values = logits + row * VOCAB
    setting = settings + row * 6
    last_distance, last_token = nucleus(
        values, tl.load(setting), tl.load(setting + 1), 1.4426950408889634 / tl.load(setting + 2),
        tl.load(setting + 3).to(tl.int32), tl.load(setting + 4), tl.load(setting + 5), VOCAB, TILE,
    )  # fmt: skip
    tl.store(out + row * 2, last_distance)
    tl.store(out + row * 2 + 1, last_token.to(tl.float32))


def kernel_keeps(logits: torch.Tensor, settings: Sequence[Setting]) -> list[npt.NDArray[np.bool_]]:
    """What the device leaves of each row, by the limits that it finds."""
    num_rows, vocab_size = logits.shape
    columns = [
        [float(row.amax()), float(row.amin()), s.temperature, float(s.top_k), s.top_p, s.min_p]
        for row, s in zip(logits, settings, strict=True)
    ]
    limits = torch.full((num_rows, 2), float("nan"), device=logits.device)
    constants = limits_launch(vocab_size)
    nucleus_kernel[(num_rows,)](
        logits, torch.tensor(columns, device=logits.device), limits,
        VOCAB=vocab_size, TILE=constants.constants["TILE"], num_warps=constants.num_warps,
    )  # fmt: skip
    found = []
    for row, setting, (last_distance, last_token) in zip(logits, settings, limits.tolist(), strict=True):
        distance = (row.amax() - row).cpu().numpy()
        at_limit = (distance == np.float32(last_distance)) & (np.arange(vocab_size) <= last_token)
        within = (distance < np.float32(last_distance)) | at_limit
        found.append(within & (weights_of(row, setting) >= np.float32(setting.min_p)))
    return found


# ---- draws -----------------------------------------------------------------------------------------


def expected_draw(row: torch.Tensor, setting: Setting) -> tuple[int, float]:
    """The token, and by how much it leads, in units of log probability."""
    if setting.temperature == 0:
        return int(row.argmax()), np.inf
    distance = (row.amax() - row).double().cpu().numpy()
    noise = np.log(exponentials(key_of(setting.seed, setting.position), len(distance)))
    chances = np.where(kept_tokens(row, setting), -distance / setting.temperature - noise, -np.inf)
    best = np.sort(chances)[-2:]
    return int(chances.argmax()), float(best[-1] - best[0]) if len(best) > 1 else np.inf


def assert_draws(logits: torch.Tensor, settings: Sequence[Setting], most_unsure: int = 2) -> None:
    """Every row's draw is the expected one, but for few that rounding may decide."""
    unsure = 0
    for row, setting, token in zip(logits, settings, tokens(logits, settings), strict=True):
        expected, lead = expected_draw(row, setting)
        if lead < 1e-4 or is_near_edge(row, setting):
            unsure += token != expected
        else:
            assert token == expected, setting
    assert unsure <= most_unsure


def expected_draws(row: torch.Tensor, setting: Setting, keys: Sequence[int]) -> list[int]:
    """One token a key."""
    chances = np.log(weights_of(row, setting) * kept_tokens(row, setting) + 1e-300)
    return [int((chances - np.log(exponentials(key, len(row)))).argmax()) for key in keys]


def chi_square(counts: Floats, probabilities: Floats) -> float:
    """In standard deviations above its mean. What has no chance must not have come."""
    assert (counts[probabilities == 0] == 0).all()
    possible = probabilities > 0
    expected = probabilities[possible] * counts.sum()
    value = float(((counts[possible] - expected) ** 2 / expected).sum())
    freedom = int(possible.sum()) - 1
    return (value - freedom) / np.sqrt(2 * freedom)
