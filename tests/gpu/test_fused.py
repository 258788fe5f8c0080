"""Fused kernels on a CUDA device, at the sizes of models that are served: bf16 above all."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.fused.activation import silu_and_mul
from engine.fused.matmul import FixedTileLinear
from engine.fused.norm import TritonNorm
from engine.fused.sampling import draw
from tests.support.devices import GPU_MARKS
from tests.support.fused_draws import (
    BLOCK,
    Setting,
    assert_draws,
    chi_square,
    exponentials,
    is_near_edge,
    kept_tokens,
    kernel_exponentials,
    kernel_keeps,
    key_of,
    tensors,
    tokens,
    weights_of,
)
from tests.support.fused_parts import (
    EPS,
    assert_by_row,
    assert_copies,
    assert_norm,
    assert_product,
    assert_swiglu,
    noise,
)

pytestmark = GPU_MARKS
DTYPES = pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float32], ids=["bf16", "fp16", "fp32"]
)
KINDS = (
    Setting(temperature=0.0),
    Setting(),
    Setting(temperature=0.6, top_p=0.95),
    Setting(temperature=0.7, top_k=20, top_p=0.8),
    Setting(top_k=50),
    Setting(min_p=0.05),
    Setting(temperature=1.5, top_k=2000, top_p=0.99, min_p=1e-5),
    Setting(top_p=1e-9),
)
REPEATS = 1000


def settings(count: int) -> list[Setting]:
    return [
        Setting(kind.temperature, kind.top_k, kind.top_p, kind.min_p, seed=2**63 + i, position=i * 11)
        for i, kind in enumerate((KINDS * (count // len(KINDS) + 1))[:count])
    ]


def random_logits(rows: int, vocab: int, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn((rows, vocab), generator=generator, device="cuda") * scale


# ---- parts -----------------------------------------------------------------------------------------


@DTYPES
@pytest.mark.parametrize("width", [100, 576, 4096, 5120, 8192, 16384])
def test_norms(width: int, dtype: torch.dtype) -> None:
    for num_rows in (0, 1, 67):
        assert_norm(num_rows, width, dtype, "cuda")


@DTYPES
@pytest.mark.parametrize("width", [1, 1023, 1536, 14336])
def test_swiglu(width: int, dtype: torch.dtype) -> None:
    for num_rows in (0, 1, 67):
        assert_swiglu(num_rows, width, dtype, "cuda")


@DTYPES
@pytest.mark.parametrize(("columns", "depth"), [(65, 100), (960, 576), (6144, 4096), (28672, 4096)])
def test_products(columns: int, depth: int, dtype: torch.dtype) -> None:
    for num_rows in (1, 16, 64, 65, 1000):
        assert_product(num_rows, columns, depth, dtype, "cuda", biased=num_rows % 2 == 1)


@DTYPES
def test_rows_stand_alone(dtype: torch.dtype) -> None:
    for columns, depth in ((100, 150), (4096, 14336), (28672, 4096)):
        weight = noise(columns, depth, seed=1, dtype=dtype, device="cuda")
        assert_by_row(FixedTileLinear(weight), noise(83, depth, dtype=dtype, device="cuda"))
    assert_by_row(TritonNorm(noise(4096, device="cuda"), EPS, dtype), noise(83, 4096, device="cuda"))
    assert_by_row(silu_and_mul, noise(83, 28672, dtype=dtype, device="cuda"))


@pytest.mark.parametrize("shape", [(20, 2, 2, 2, 16, 8), (64, 32, 2, 8, 16, 128), (9, 3, 2, 5, 16, 64)])
def test_copies(shape: tuple[int, ...]) -> None:
    pool = noise(*shape, dtype=torch.bfloat16, device="cuda")
    pool[::3] = float("nan")
    for num_pairs in (0, 1, len(pool) // 2):
        assert_copies(pool, num_pairs, seed=num_pairs)


# ---- draws -----------------------------------------------------------------------------------------


def test_noise_is_what_it_is_defined_to_be() -> None:
    keys = [key_of(seed, seed * 3) for seed in range(200)] + [0, 2**64 - 1]
    expected = np.stack([exponentials(key, BLOCK) for key in keys])
    np.testing.assert_allclose(kernel_exponentials(keys, "cuda").cpu().numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("vocab", [40, 4097, 50257, 128256])
def test_draws_are_the_expected_ones(vocab: int) -> None:
    assert_draws(random_logits(24, vocab), settings(24))


@pytest.mark.parametrize("vocab", [40, 8193, 128256])
@pytest.mark.parametrize("step", [0, 0.5])
def test_what_is_kept_is_what_a_sort_keeps(vocab: int, step: float) -> None:
    logits, kinds = random_logits(len(KINDS) - 1, vocab, seed=1), settings(len(KINDS))[1:]
    logits = (logits / step).round() * step if step else logits
    for row, kind, kept in zip(logits, kinds, kernel_keeps(logits, kinds), strict=True):
        if not is_near_edge(row, kind):
            np.testing.assert_array_equal(kept, kept_tokens(row, kind), err_msg=str(kind))


@pytest.mark.parametrize("kind", KINDS[1:7], ids=str)
def test_draws_follow_the_distribution(kind: Setting) -> None:
    draws, logits = 200_000, random_logits(1, 12, seed=4, scale=1.0)
    weights = weights_of(logits[0], kind) * kept_tokens(logits[0], kind)
    columns = list(tensors([kind] * draws, "cuda"))
    columns[5] = torch.arange(draws, dtype=torch.int32, device="cuda")
    found = draw(logits.expand(draws, -1).contiguous(), *columns)
    counts = torch.bincount(found, minlength=12).double().cpu().numpy()
    assert chi_square(counts, weights / weights.sum()) < 4


def test_a_draw_does_not_depend_on_its_neighbours() -> None:
    logits, kinds = random_logits(64, 50257), settings(64)
    together = tokens(logits, kinds)
    order = torch.randperm(64).tolist()
    assert tokens(logits[order], [kinds[row] for row in order]) == [together[row] for row in order]
    for row in range(0, 64, 7):
        assert tokens(logits[row : row + 1].clone(), kinds[row : row + 1]) == [together[row]]


def test_rows_that_are_not_finite_fail_alone() -> None:
    logits, kinds = random_logits(16, 50257), settings(16)
    sound = tokens(logits, kinds)
    for value in (float("nan"), float("inf"), float("-inf")):
        broken = logits.clone()
        broken[3, 50256] = value
        broken[9] = value
        found = tokens(broken, kinds)
        assert [token for row, token in enumerate(found) if row not in (3, 9)] == [
            token for row, token in enumerate(sound) if row not in (3, 9)
        ]
        assert found[3] == found[9] == -1


# ---- in graphs, and again and again ----------------------------------------------------------------


def test_a_graph_draws_from_what_its_tensors_hold_then() -> None:
    logits, columns = random_logits(32, 128256), tensors(settings(32), "cuda")
    draw(logits, *columns)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = draw(logits, *columns)
    for seed in range(3):
        logits.copy_(random_logits(32, 128256, seed=seed))
        columns[5].add_(1)
        graph.replay()
        assert torch.equal(found, draw(logits, *columns))
