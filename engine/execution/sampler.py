"""Draws the next tokens of a whole batch, and ranks those of beam searches. Stateless.

Runs on: step thread. Order: bias, bans, penalties, masks of grammars; greedy rows take the maximum; the
others go through temperature, min-p, top-k and top-p, and are drawn by inverse CDF with one uniform number
from a counter-based generator keyed by (seed, position). So a draw depends neither on the row's neighbours
nor on whether the request was preempted. Rows that ask for nothing special cost nothing special.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from msgspec.structs import replace

from engine.execution.grammars import Mask
from engine.execution.random_numbers import uniform
from engine.messages import SamplingParams, TokenLogprobs
from engine.schedule import SampledToken, SampleSpec

_PREFIX = 512  # how many of the most likely tokens are tried before the whole vocabulary is sorted
_COLDEST = 1e-30  # below it a temperature is as good as this one, and would soon be zero in float32


def sample(
    logits: torch.Tensor, specs: Sequence[SampleSpec], masks: Sequence[Mask | None] | None = None
) -> list[tuple[SampledToken, ...]]:
    """What each row of ``logits`` ``[R, V]`` float32 was asked for: a token a seed, or the likeliest tokens.

    A row with a mask gets only tokens that it allows; candidates of beam searches know no masks.
    Nothing for a row whose logits are not finite. ``logprobs`` are those of ``logits`` as they came, before
    anything was done to them.
    """
    assert logits.dtype is torch.float32
    masks = [None] * len(specs) if masks is None else masks
    assert len(specs) == len(masks) == logits.shape[0]
    found: list[tuple[SampledToken, ...]] = [()] * len(specs)
    draws = [(row, seed) for row, spec in enumerate(specs) for seed in spec.seeds]
    if draws:
        rows = [row for row, _ in draws]
        drawn = _sample_rows(
            logits if rows == list(range(len(specs))) else logits[rows],
            [
                replace(specs[row], seeds=(seed,)) if len(specs[row].seeds) > 1 else specs[row]
                for row, seed in draws
            ],
            [masks[row] for row in rows],
        )
        for row, token in zip(rows, drawn, strict=True):
            found[row] += (token,)
    searching = [row for row, spec in enumerate(specs) if spec.num_candidates]
    if searching:
        ranked = _rank(logits[searching], [specs[row] for row in searching])
        for row, tokens in zip(searching, ranked, strict=True):
            found[row] = tokens
    broken = (~torch.isfinite(logits.sum(dim=1))).tolist()
    return [() if bad else tokens for bad, tokens in zip(broken, found, strict=True)]


def _sample_rows(
    logits: torch.Tensor, specs: Sequence[SampleSpec], masks: Sequence[Mask | None]
) -> list[SampledToken]:
    """One token a row."""
    tokens = _draw(_adjusted(logits, specs, masks), specs)
    logprobs = _logprobs(logits, specs, tokens)
    return [SampledToken(token, shown) for token, shown in zip(tokens, logprobs, strict=True)]


def _rank(logits: torch.Tensor, specs: Sequence[SampleSpec]) -> list[tuple[SampledToken, ...]]:
    """The likeliest tokens of each row, by log probabilities to which bias, bans and penalties were applied.

    In this order, which leaves their sum other than one, because transformers ranks beams so.
    """
    normalized = torch.log_softmax(logits, dim=1)
    most = min(max(spec.num_candidates * (1 + len(spec.ends)) for spec in specs), logits.shape[1])
    values, indices = (
        part.tolist() for part in _adjusted(normalized, specs, [None] * len(specs)).topk(most, dim=1)
    )
    ranked = []
    for row, spec in enumerate(specs):
        kept = _candidates(indices[row], spec)
        tokens = [indices[row][rank] for rank in kept]
        shown = _shown_logprobs(normalized[row], tokens, spec.params.logprobs)
        ranked.append(tuple(map(SampledToken, tokens, shown, (values[row][rank] for rank in kept))))
    return ranked


def _candidates(tokens: Sequence[int], spec: SampleSpec) -> list[int]:
    """Ranks of the likeliest tokens, and of as many that do not end the text; ``tokens`` are best first."""
    kept, num_open = [], 0
    for rank, token in enumerate(tokens):
        if num_open == spec.num_candidates:
            break
        is_open = token not in spec.ends
        if is_open or rank < spec.num_candidates:
            kept.append(rank)
        num_open += is_open
    return kept


def _shown_logprobs(
    normalized: torch.Tensor, tokens: Sequence[int], num_top: int | None
) -> list[TokenLogprobs | None]:
    """What is shown of each of these candidates, which come from one row ``[V]``."""
    if num_top is None:
        return [None] * len(tokens)
    values, indices = (part.tolist() for part in normalized.topk(min(num_top, len(normalized))))
    top = tuple(zip(indices, values, strict=True))
    chosen = normalized[list(tokens)].tolist()
    return [TokenLogprobs(logprob, top) for logprob in chosen]


def _rows_where(specs: Sequence[SampleSpec], wants: Callable[[SamplingParams], bool]) -> list[int]:
    return [row for row, spec in enumerate(specs) if wants(spec.params)]


# ---- what changes logits ---------------------------------------------------------------------------


def _adjusted(
    logits: torch.Tensor, specs: Sequence[SampleSpec], masks: Sequence[Mask | None]
) -> torch.Tensor:
    """Logits with bias, bans, penalties and masks; the same tensor if no row asks for any."""
    biased = _rows_where(specs, lambda params: bool(params.logit_bias))
    banned = [row for row, spec in enumerate(specs) if _bans(spec, masks[row])]
    penalized = _rows_where(specs, _has_penalty)
    masked = [(row, mask) for row, mask in enumerate(masks) if mask is not None]
    if not (biased or banned or penalized or masked):
        return logits
    logits = logits.clone()
    for row in biased:
        bias = specs[row].params.logit_bias
        logits[row, list(bias)] += torch.tensor(list(bias.values()), device=logits.device)
    for row in banned:
        logits[row, list(specs[row].banned_token_ids)] = -torch.inf
    if penalized:
        logits[penalized] = _penalized(logits[penalized], [specs[row] for row in penalized])
    if masked:
        rows = [row for row, _ in masked]
        allowed = torch.from_numpy(np.stack([mask for _, mask in masked])).to(logits.device)
        logits[rows] = logits[rows].masked_fill(~allowed, -torch.inf)
    return logits


def _bans(spec: SampleSpec, mask: Mask | None) -> bool:
    """Whether the banned tokens of a row are banned: not where a grammar allows nothing else."""
    banned = list(set(spec.banned_token_ids))
    return bool(banned) and (mask is None or int(mask.sum()) > int(mask[banned].sum()))


def _has_penalty(params: SamplingParams) -> bool:
    return (
        params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
    )


def _penalized(logits: torch.Tensor, specs: Sequence[SampleSpec]) -> torch.Tensor:
    """Repetition (Keskar et al. 2019) over prompt and output; presence and frequency over the output."""
    vocab_size, device = logits.shape[1], logits.device
    in_output = _token_counts([spec.output_token_ids for spec in specs], vocab_size, device)
    in_prompt = _token_counts([spec.prompt_token_ids for spec in specs], vocab_size, device)
    repetition = _column(specs, lambda params: params.repetition_penalty, device)
    seen = (in_output > 0) | (in_prompt > 0)
    divided = torch.where(logits > 0, logits / repetition, logits * repetition)
    logits = torch.where(seen, divided, logits)
    logits -= _column(specs, lambda params: params.frequency_penalty, device) * in_output
    logits -= _column(specs, lambda params: params.presence_penalty, device) * (in_output > 0)
    return logits


def _token_counts(histories: Sequence[Sequence[int]], vocab_size: int, device: torch.device) -> torch.Tensor:
    """How often each token occurs in each history: ``[R, V]`` float32."""
    counts = [np.bincount(np.asarray(ids, dtype=np.int64), minlength=vocab_size) for ids in histories]
    return torch.from_numpy(np.stack(counts)).to(device=device, dtype=torch.float32)


def _column(
    specs: Sequence[SampleSpec], value: Callable[[SamplingParams], float], device: torch.device
) -> torch.Tensor:
    """One number per row, ``[R, 1]``."""
    return torch.tensor([[value(spec.params)] for spec in specs], dtype=torch.float32, device=device)


# ---- drawing ---------------------------------------------------------------------------------------


def _draw(logits: torch.Tensor, specs: Sequence[SampleSpec]) -> list[int]:
    tokens: list[int] = logits.argmax(dim=1).tolist()
    random = _rows_where(specs, lambda params: params.temperature > 0)
    if random:
        chosen = [specs[row] for row in random]
        rows = logits if len(random) == len(specs) else logits[random]
        for row, token in zip(random, _draw_random(rows, chosen), strict=True):
            tokens[row] = token
    return tokens


def _draw_random(logits: torch.Tensor, specs: Sequence[SampleSpec]) -> list[int]:
    temperature = _column(specs, lambda params: max(params.temperature, _COLDEST), logits.device)
    probabilities = torch.softmax((logits - logits.amax(dim=1, keepdim=True)) / temperature, dim=1)
    probabilities = _without_unlikely(probabilities, specs)
    seeds = np.array([spec.seeds[0] for spec in specs], dtype=np.uint64)
    positions = np.array([spec.position for spec in specs], dtype=np.uint64)
    return _inverse_cdf(probabilities, uniform(seeds, positions))


def _inverse_cdf(probabilities: torch.Tensor, numbers: npt.NDArray[np.float64]) -> list[int]:
    """The token at which the running sum of each row passes its number. Rows need not sum to one.

    A row of NaN, which the caller discards, gives the last token: always one of the vocabulary.
    """
    sums = probabilities.double().cumsum(dim=1)
    totals = sums[:, -1:].contiguous()
    targets = torch.from_numpy(numbers).to(sums.device)[:, None] * totals
    targets = torch.minimum(targets, torch.nextafter(totals, torch.zeros_like(totals)))
    found = torch.searchsorted(sums, targets, right=True)[:, 0]
    tokens: list[int] = found.clamp_(max=sums.shape[1] - 1).tolist()
    return tokens


def _without_unlikely(probabilities: torch.Tensor, specs: Sequence[SampleSpec]) -> torch.Tensor:
    """Probabilities, which sum to one, with what min-p, top-k and top-p exclude set to zero."""
    floored = _rows_where(specs, lambda params: params.min_p > 0)
    if floored:
        floor = _column([specs[row] for row in floored], lambda params: params.min_p, probabilities.device)
        rows = probabilities[floored]
        rows = rows.where(rows >= floor * rows.amax(dim=1, keepdim=True), 0)
        # A running sum, because sum() adds up a lone row in another order than one among others.
        probabilities[floored] = (rows / rows.double().cumsum(dim=1)[:, -1:]).float()
    vocab_size = probabilities.shape[1]
    cut = _rows_where(specs, lambda params: 0 < params.top_k < vocab_size or params.top_p < 1)
    if cut:
        probabilities[cut] = _nucleus(probabilities[cut], [specs[row] for row in cut], _PREFIX)
    return probabilities


def _nucleus(probabilities: torch.Tensor, specs: Sequence[SampleSpec], prefix: int) -> torch.Tensor:
    """Keep the ``top_k`` likeliest, and of those the fewest that reach ``top_p`` of their sum.

    Looks at the ``prefix`` likeliest first; rows for which that is not enough are sorted whole.
    """
    vocab_size, device = probabilities.shape[1], probabilities.device
    prefix = min(prefix, vocab_size)
    values, indices = probabilities.topk(prefix, dim=1)
    limits = [min(spec.params.top_k or vocab_size, vocab_size) for spec in specs]
    limit = torch.tensor(limits, device=device)[:, None]
    rank = torch.arange(prefix, device=device)
    values = values.where(rank < limit, 0)
    sums = values.double().cumsum(dim=1)
    whole = sums[:, -1:].where(limit <= prefix, 1.0)
    wanted = _column(specs, lambda params: params.top_p if params.top_p < 1 else np.inf, device) * whole
    kept_values = values.where((sums - values < wanted) | (rank == 0), 0)
    kept = torch.zeros_like(probabilities).scatter_(1, indices, kept_values)
    if prefix < vocab_size:
        reached = (limit <= prefix) | ((limit == vocab_size) & (sums[:, -1:] >= wanted))
        short = [row for row, enough in enumerate(reached[:, 0].tolist()) if not enough]
        if short:
            kept[short] = _nucleus(probabilities[short], [specs[row] for row in short], vocab_size)
    return kept


# ---- log probabilities -----------------------------------------------------------------------------


def _logprobs(
    logits: torch.Tensor, specs: Sequence[SampleSpec], tokens: Sequence[int]
) -> list[TokenLogprobs | None]:
    result: list[TokenLogprobs | None] = [None] * len(specs)
    rows = _rows_where(specs, lambda params: params.logprobs is not None)
    if not rows:
        return result
    logprobs = torch.log_softmax(logits[rows], dim=1)
    chosen = logprobs[range(len(rows)), [tokens[row] for row in rows]].tolist()
    most = max(specs[row].params.logprobs or 0 for row in rows)
    values, indices = (part.tolist() for part in logprobs.topk(min(most, logits.shape[1]), dim=1))
    for i, row in enumerate(rows):
        count = specs[row].params.logprobs or 0
        top = zip(indices[i][:count], values[i][:count], strict=True)
        result[row] = TokenLogprobs(chosen[i], tuple(top))
    return result
