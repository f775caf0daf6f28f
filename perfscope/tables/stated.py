"""What a user states of a run."""

from __future__ import annotations

from msgspec import Struct


class Stated(Struct, frozen=True):
    """What the user states of a run because nothing in it shows it.

    Attributes:
        precision: Data type of its matrix products.
        peak_tflops: Dense peak of one GPU, in TFLOP/s.
    """

    precision: str | None = None
    peak_tflops: float | None = None
