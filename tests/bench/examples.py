"""Measurements as a benchmark would have them, for the tests."""

from __future__ import annotations

from dataclasses import replace

from perfscope.bench.rows import Measurement
from perfscope.bench.settings import Machine, Settings, Variant

SETTINGS = Settings(
    model="gpt:2x32x16",
    data=None,
    device="cpu",
    batch=16,
    steps=5,
    threads=1,
    launcher=None,
)
MACHINE = Machine(
    gpus=0,
    layers=4,
    tokens=16,
    has_splits=True,
    is_classified=False,
    flops_per_sample=10**9,
)


def variant(strategy: str = "ddp", nproc: int = 2, **options: object) -> Variant:
    """A row."""
    return replace(Variant(strategy, nproc, "fp32"), **options)  # type: ignore[arg-type]


def measurement(
    row: Variant, step_ms: float, repetition: int = 0, memory: tuple[int, ...] = (10**9,), **figures: object
) -> Measurement:
    """A training whose steps all took as long."""
    step_ns = (round(step_ms * 1e6),) * 5
    whole = Measurement(row, repetition, step_ns=step_ns, samples=16, tokens=256, memory_bytes=memory, last_loss=1.0)
    return replace(whole, **figures)  # type: ignore[arg-type]
