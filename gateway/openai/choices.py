"""How many answers a request wants, and how they are found: ``n``, ``best_of`` and beam search.

Pure; runs on offload threads. Of ``best_of`` samples the ``n`` are shown whose tokens are on average the
likeliest. In a beam search ``best_of``, or ``n`` without it, is the number of beams.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.messages import BeamParams
from gateway.errors import bad_request
from gateway.openai.ranges import LENGTH_PENALTY, MAX_N
from gateway.openai.wire import GenerationFields

_BEAMS_DRAW_NOTHING = {"temperature": (0, 1), "top_p": (1,), "top_k": (0, -1), "min_p": (0,)}


@dataclass(frozen=True, slots=True)
class Choices:
    """``num_shown`` answers out of ``num_generated``; with ``beam`` they are the best that it found."""

    num_shown: int
    num_generated: int
    beam: BeamParams | None = None


def check_choices(wire: GenerationFields, max_seqs: int) -> Choices:
    """Raises ApiError. ``max_seqs``: how many sequences the engine runs at once."""
    n = _check_count(wire.n, "n", max_seqs)
    best_of = n if wire.best_of is None else _check_count(wire.best_of, "best_of", max_seqs)
    if best_of < n:
        raise bad_request("best_of", "'best_of' must not be below 'n'.")
    if wire.use_beam_search:
        return Choices(n, n, _check_beams(wire, best_of))
    for name in ("length_penalty", "early_stopping"):
        if getattr(wire, name) is not None:
            raise bad_request(name, f"'{name}' goes with 'use_beam_search': true only.")
    if wire.stream and best_of > n:
        raise bad_request(
            "best_of", "'best_of' above 'n' cannot be streamed: which are best shows at the end."
        )
    return Choices(n, best_of)


def _check_count(value: int | None, param: str, max_seqs: int) -> int:
    if value is None:
        return 1
    if not 1 <= value <= MAX_N:
        raise bad_request(param, f"'{param}' must be at least 1 and at most {MAX_N}.")
    if value > max_seqs:
        raise bad_request(param, f"'{param}' must be at most {max_seqs} on this server (--max-num-seqs).")
    return value


def _check_beams(wire: GenerationFields, width: int) -> BeamParams:
    if width < 2:
        raise bad_request(
            "use_beam_search", "Beam search takes its width from 'n' or 'best_of', which must be at least 2."
        )
    for name, neutral in _BEAMS_DRAW_NOTHING.items():
        value = getattr(wire, name)
        if value is not None and value not in neutral:
            raise bad_request(name, f"'{name}' has no meaning in a beam search, which draws nothing.")
    if wire.stop:
        raise bad_request("stop", "'stop' does not go with beam search; use 'stop_token_ids'.")
    penalty = 1.0 if wire.length_penalty is None else wire.length_penalty
    if penalty not in LENGTH_PENALTY:
        raise bad_request("length_penalty", f"'length_penalty' must be {LENGTH_PENALTY}.")
    return BeamParams(width, penalty, _check_early_stopping(wire.early_stopping))


def _check_early_stopping(value: bool | str | None) -> bool | Literal["never"]:
    if value is None or isinstance(value, bool):
        return bool(value)
    if value != "never":
        raise bad_request("early_stopping", "'early_stopping' must be true, false or \"never\".")
    return "never"
