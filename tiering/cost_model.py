"""Predicts what computing or copying KV would take, from what the engine has measured so far.

Pure arithmetic over observations that the owner of the clock feeds in. A step is modelled as

    seconds = fixed + per_token * tokens + per_pair * pairs

with ``pairs`` the query-key pairs of its attention: recursive least squares with forgetting (Ljung,
System Identification, ch. 11), over relative errors. A copy is bytes / bandwidth, an exponential average
per direction.
"""

from __future__ import annotations

from tiering.types import TransferKind

_FORGETTING = 0.98
_COPY_WEIGHT = 0.1  # of a new observation of a block's copy
_OUTLIER = 4.0  # an observation counts as at most so many times the average
_MAX_TRACE = 3e6  # of the covariance, which starts at this
_PREFILL_TOKENS = 16  # a step with fewer tokens tells little about the cost of one more
_SCALES = (1.0, 1e-3, 1e-6)  # brings the three features to about the same size


class CostModel:
    """One engine's prices. Answers None until it has seen something of the kind.

    ``step_tokens``: how many tokens of a prompt a step computes at most.
    """

    def __init__(self, block_size: int, block_bytes: int, step_tokens: int = 512) -> None:
        self._step_tokens = step_tokens
        self._block_size = block_size
        self._block_bytes = block_bytes
        self._weights = [0.0, 0.0, 0.0]
        self._covariance = [[1e6 if i == j else 0.0 for j in range(3)] for i in range(3)]
        self._num_steps = 0
        self._copy_s: dict[TransferKind, float] = {}

    # ---- observations --------------------------------------------------------------------------

    def observe_step(self, num_tokens: int, num_pairs: int, seconds: float) -> None:
        """A step computed ``num_tokens`` rows that attended to ``num_pairs`` positions in all."""
        if num_tokens < _PREFILL_TOKENS or seconds <= 0:
            return
        self._num_steps += 1
        row = [
            value * scale / seconds for value, scale in zip((1, num_tokens, num_pairs), _SCALES, strict=True)
        ]
        gain = [sum(c * x for c, x in zip(line, row, strict=True)) for line in self._covariance]
        denominator = _FORGETTING + sum(x * g for x, g in zip(row, gain, strict=True))
        error = 1.0 - sum(w * x for w, x in zip(self._weights, row, strict=True))
        self._weights = [w + g * error / denominator for w, g in zip(self._weights, gain, strict=True)]
        shrunk = [
            [c - gi * gj / denominator for c, gj in zip(line, gain, strict=True)]
            for line, gi in zip(self._covariance, gain, strict=True)
        ]
        # Steps that are all alike say nothing in some directions, where forgetting would grow without bound.
        trace = sum(shrunk[i][i] for i in range(3))
        scale = 1 / _FORGETTING if trace / _FORGETTING < _MAX_TRACE else 1.0
        self._covariance = [[scale * (shrunk[i][j] + shrunk[j][i]) / 2 for j in range(3)] for i in range(3)]

    def observe_copy(self, kind: TransferKind, seconds: float) -> None:
        """One block was copied in ``seconds``."""
        old = self._copy_s.get(kind, seconds)
        bounded = min(seconds, _OUTLIER * old) if old > 0 else seconds
        self._copy_s[kind] = old + _COPY_WEIGHT * (bounded - old)

    # ---- predictions ---------------------------------------------------------------------------

    def prefill_s(self, start: int, stop: int) -> float | None:
        """Seconds to compute positions ``[start, stop)``, beyond what a step costs anyway."""
        if self._num_steps == 0:
            return None
        tokens = stop - start
        pairs = tokens * start + tokens * (tokens + 1) // 2
        _, per_token, per_pair = (w * scale for w, scale in zip(self._weights, _SCALES, strict=True))
        return max(0.0, per_token * tokens + per_pair * pairs)

    def recompute_s(self, start: int, stop: int) -> float | None:
        """Seconds to compute positions ``[start, stop)`` of a sequence in steps of its own."""
        prefill_s = self.prefill_s(start, stop)
        return (
            None if prefill_s is None else prefill_s + -(-(stop - start) // self._step_tokens) * self.step_s()
        )

    def block_s(self, depth: int) -> float:
        """Seconds to compute the block behind ``depth`` others; 0 if unknown."""
        start = depth * self._block_size
        return self.prefill_s(start, start + self._block_size) or 0.0

    def step_s(self) -> float:
        """Seconds that a step takes however little it computes; 0 if unknown."""
        return max(0.0, self._weights[0])

    def coefficients(self) -> tuple[float, float, float]:
        """Seconds per step, per token and per query-key pair, as fitted; 0 if unknown."""
        per_step, per_token, per_pair = (w * scale for w, scale in zip(self._weights, _SCALES, strict=True))
        return per_step, per_token, per_pair

    def copy_s(self, kind: TransferKind, num_blocks: int) -> float | None:
        """Seconds to copy so many blocks one way."""
        if num_blocks == 0:
            return 0.0
        per_block = self._copy_s.get(kind)
        return None if per_block is None else per_block * num_blocks

    def bandwidth(self, kind: TransferKind) -> float | None:
        """Bytes per second of one direction, None if nothing was copied yet."""
        per_block = self._copy_s.get(kind)
        return None if not per_block else self._block_bytes / per_block
