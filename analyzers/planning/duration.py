"""How long training will take, or how fast it must be: tokens x operations per token = time x GPUs x TFLOPs.

Three of time, TFLOPs per GPU and tokens determine the third. The TFLOPs are by a convention, as everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

_S_PER_DAY = 86400
_S_PER_HOUR = 3600


@dataclass(frozen=True, slots=True)
class Training:
    """A whole training.

    Attributes:
        flops_per_token: Operations of one token, forward and backward, by the convention of the TFLOPs.
        tokens: Tokens to train on; absent where unknown.
        gpus: Number of GPUs.
        tflops_per_gpu: TFLOPs per GPU; absent where unknown.
        seconds: How long it takes; absent where unknown.
        solved: Which of the three was computed from the others; empty where too few are known.
    """

    flops_per_token: int
    tokens: int | None
    gpus: int
    tflops_per_gpu: float | None
    seconds: float | None
    solved: str

    @property
    def days(self) -> float | None:
        """How long it takes in days."""
        return None if self.seconds is None else self.seconds / _S_PER_DAY

    @property
    def hours(self) -> float | None:
        """How long it takes in hours."""
        return None if self.seconds is None else self.seconds / _S_PER_HOUR

    @property
    def gpu_hours(self) -> float | None:
        """GPU-hours of it."""
        return None if self.seconds is None else self.seconds / _S_PER_HOUR * self.gpus


def solve(
    flops_per_token: int, tokens: int | None, gpus: int, tflops_per_gpu: float | None, seconds: float | None
) -> Training:
    """Compute the one of tokens, TFLOPs and time that is absent; nothing where more than one is."""
    rate = None if tflops_per_gpu is None else gpus * tflops_per_gpu * 1e12
    if tokens is not None and rate is not None and seconds is None:
        return Training(flops_per_token, tokens, gpus, tflops_per_gpu, tokens * flops_per_token / rate, "time")
    if tokens is not None and rate is None and seconds is not None:
        needed = tokens * flops_per_token / seconds / gpus / 1e12
        return Training(flops_per_token, tokens, gpus, needed, seconds, "tflops")
    if tokens is None and rate is not None and seconds is not None:
        return Training(flops_per_token, int(rate * seconds / flops_per_token), gpus, tflops_per_gpu, seconds, "tokens")
    return Training(flops_per_token, tokens, gpus, tflops_per_gpu, seconds, "")
