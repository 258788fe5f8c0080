"""What a part has to measure with: the device, the sizes, the limits so far, and where to tell what it found.

A measurement that fails is told as such and the next one begins; so a shape that does not fit the memory
costs its own row.
"""

from __future__ import annotations

import contextlib
import gc
import time
import traceback
from collections.abc import Callable, Iterator

import torch

from benchmarks.gpu_check.figures import Facts, Failure, Figure, Line
from benchmarks.gpu_check.parts import Settings
from benchmarks.gpu_check.scales import SCALES
from benchmarks.gpu_check.timing import Timing

_REASON_LENGTH = 300


class Context:
    """``dtype`` is what the engine would choose there."""

    def __init__(self, settings: Settings, tell: Callable[[Line], None]) -> None:
        self.device = torch.device(settings.device)
        self.dtype = torch.bfloat16 if self.on_gpu else torch.float32
        self.scale = SCALES[settings.scale]
        self._deadline = settings.deadline
        self.measured = dict(settings.measured)
        self.has_failed = False
        self._tell = tell

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def left_s(self) -> float:
        """Until this part is ended."""
        return self._deadline - time.monotonic()

    def tell_facts(self, facts: dict[str, str]) -> None:
        """Tell what is worth to know beside figures."""
        self._tell(Facts(facts=facts))

    def tell(
        self,
        name: str,
        value: float,
        unit: str,
        *,
        beside: str = "",
        limit: float | None = None,
        target: float | None = None,
        is_ceiling: bool = False,
        spread: float | None = None,
    ) -> None:
        """Tell a figure; ``limit`` is the earlier one named ``beside`` where it is not given."""
        self.measured[name] = value
        self._tell(
            Figure(
                name=name,
                value=value,
                unit=unit,
                beside=beside,
                limit=self.measured.get(beside) if limit is None else limit,
                target=target,
                is_ceiling=is_ceiling,
                spread=spread,
            )
        )

    def tell_rate(
        self,
        name: str,
        amount: float,
        timing: Timing,
        unit: str,
        *,
        beside: str = "",
        target: float | None = None,
    ) -> None:
        """Tell ``amount`` (bytes, operations or tokens) by the time it took, in ``unit``, as GB/s."""
        value = amount / timing.median_s / self.unit_of(unit)
        self.tell(name, value, unit, beside=beside, target=target, spread=timing.spread)

    def tell_ms(self, name: str, timing: Timing) -> None:
        """Tell how long something took, in milliseconds."""
        self.tell(name, 1000 * timing.median_s, "ms", spread=timing.spread)

    @staticmethod
    def unit_of(name: str) -> float:
        """How many bytes, operations or tokens a second it stands for."""
        return _UNITS[name]

    @contextlib.contextmanager
    def case(self, name: str) -> Iterator[None]:
        """One measurement, or a few that stand or fall together."""
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            self.tell_failure(name, error)
            traceback.clear_frames(error.__traceback__)  # what they hold on the device is the next one's
        finally:
            self._give_back_memory()

    def _give_back_memory(self) -> None:
        gc.collect()
        if self.on_gpu:
            with contextlib.suppress(RuntimeError):  # after a fault of the device every call fails
                torch.cuda.empty_cache()

    def tell_failure(self, name: str, reason: Exception | str) -> None:
        self.has_failed = True
        text = reason if isinstance(reason, str) else f"{type(reason).__name__}: {reason}"
        self._tell(Failure(name=name, reason=" ".join(text.split())[:_REASON_LENGTH]))


_UNITS = {"tokens/s": 1.0, "GB/s": 1e9, "TFLOP/s": 1e12}
