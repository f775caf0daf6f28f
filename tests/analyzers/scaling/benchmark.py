"""Logs of DLPerf's benchmarks with given speeds, and an oracle that is written from the scripts' rules alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np


def gluon_line(step: int, latency: str) -> str:
    tokens = 32 * 128 / float(latency)
    return (
        f"INFO:root:03:21:22 [step {step}]\tmlm_loss=7.38120\tnsp_loss=0.60130\tthroughput={tokens:.1f}K tks/s\t"
        f"lr=0.0000500 time={float(latency) / 1000:.2f}, latency={latency} ms/batch\n"
    )


def deepspeed_line(step: int, speed: str) -> str:
    return f"[2020-12-05 10:00:00,000] [INFO] [timer.py:157:stop] 0/{step}, SamplesPerSec={speed}\n"


def write_gluon(folder: Path, run: int, gpus: int, latencies: Sequence[str], batch: int = 32) -> Path:
    """One run: a latency for each iteration, the same on all ranks."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"bert_b{batch}_fp32_{run}.log"
    path.write_text("".join(gluon_line(step, text) * gpus for step, text in enumerate(latencies, 1)))
    return path


def write_deepspeed(folder: Path, run: int, speeds: Sequence[str], batch: int = 8) -> Path:
    """One run: the first two iterations print nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"gpt2-small_b{batch}_fp16_{run}.log"
    path.write_text("".join(deepspeed_line(step, text) for step, text in enumerate(speeds, 3)))
    return path


def latencies_for(speed: float, gpus: int, batch: int = 32) -> list[str]:
    """Two hundred latencies of one decimal whose last hundred average to a speed of two decimals."""
    tenth = round(10_000 * batch * gpus / speed)
    wanted = Fraction(str(speed))

    def of(tenths: int) -> Fraction:
        return Fraction(10_000 * batch * gpus, tenths)

    for many in range(101):
        for step in range(-3, 4):
            for one in range(-40, 41):
                latencies = [tenth] * (99 - min(many, 99)) + [tenth + step] * min(many, 99) + [tenth + one]
                mean = sum((of(value) * latencies.count(value) for value in set(latencies)), Fraction(0)) / 100
                if abs(mean - wanted) < Fraction(1, 250):
                    return [f"{value / 10:.1f}" for value in [tenth] * 100 + latencies]
    raise AssertionError(f"no latencies give {speed}")


def numpys_round(value: float) -> float:
    return float(np.rint(np.float64(value) * 100) / 100)


def oracle(speeds: Mapping[str, Mapping[int, float]], batch: int) -> dict[str, dict[str, float]]:
    """From speeds of runs to the object that the scripts write."""
    medians = {}
    for case, runs in speeds.items():
        ordered = sorted(runs.values())
        middle = len(ordered) // 2
        low, high = ordered[(len(ordered) - 1) // 2], ordered[middle]
        medians[case] = numpys_round((low + high) / 2)
    return {
        case: {
            "average_speed": numpys_round(sum(runs.values()) / len(runs)),
            "batch_size_per_device": batch,
            "median_speed": medians[case],
            "speedup": numpys_round(medians[case] / medians["1n1g"]),
        }
        for case, runs in speeds.items()
    }
