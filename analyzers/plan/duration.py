"""How long a training run takes, or how fast it must be: tokens x operations per token = time x GPUs x TFLOPs.

Of tokens, TFLOPs per GPU and time two determine the third. The TFLOPs are by a convention, as everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfscope.constants import S_PER_DAY, S_PER_HOUR, TERA


@dataclass(frozen=True, slots=True)
class Duration:
    """The duration of a training run; None for what is unknown.

    ``flops_per_token`` is by the convention of ``tflops_per_gpu``. ``solved_for`` names what was computed of
    ``tokens``, ``tflops`` and ``time``; it is empty where too few are known.
    """

    flops_per_token: int
    tokens: int | None
    gpus: int
    tflops_per_gpu: float | None
    seconds: float | None
    solved_for: str

    @property
    def days(self) -> float | None:
        """The time in days."""
        return None if self.seconds is None else self.seconds / S_PER_DAY

    @property
    def hours(self) -> float | None:
        """The time in hours."""
        return None if self.seconds is None else self.seconds / S_PER_HOUR

    @property
    def gpu_hours(self) -> float | None:
        """The time in hours, summed over all GPUs."""
        return None if self.hours is None else self.hours * self.gpus


def solve_duration(
    flops_per_token: int, tokens: int | None, gpus: int, tflops_per_gpu: float | None, seconds: float | None
) -> Duration:
    """Compute the missing one of tokens, TFLOPs and time; nothing where more than one is missing."""
    solved_for = ""
    rate = None if tflops_per_gpu is None else gpus * tflops_per_gpu * TERA
    if tokens is not None and rate is not None and seconds is None:
        seconds, solved_for = tokens * flops_per_token / rate, "time"
    elif tokens is not None and rate is None and seconds is not None:
        tflops_per_gpu, solved_for = tokens * flops_per_token / seconds / gpus / TERA, "tflops"
    elif tokens is None and rate is not None and seconds is not None:
        tokens, solved_for = int(rate * seconds / flops_per_token), "tokens"
    return Duration(flops_per_token, tokens, gpus, tflops_per_gpu, seconds, solved_for)
