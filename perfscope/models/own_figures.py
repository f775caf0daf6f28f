"""Why the TFLOPs and MFU that a framework logs differ from those computed here, from ``own_figures.toml``.

The table is data: a framework or a convention, a condition, a sentence and its source.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from perfscope.models.data_files import read_data
from perfscope.models.transformer import Transformer

#: MFU is printed with two decimals of a percent.
_HALF_A_DIGIT = 0.005
#: Frameworks round peaks: 989 TFLOP/s for 989.4.
_SAME_PEAK = 1.002


class OwnFigure(NamedTuple):
    """One reason; see ``own_figures.toml``. ``adds`` and ``to`` are of a fault alone."""

    says: str
    source: str
    framework: str | None = None
    convention: str | None = None
    tied: bool | None = None
    peak_tflops: float | None = None
    negative: bool = False
    adds: str | None = None
    to: str | None = None

    def sentence(self) -> str:
        """The reason with its source."""
        return f"Why it differs: {self.says} ({self.source})."


class LoggedMfu(NamedTuple):
    """The MFU of a log's last record in percent, and the TFLOPs of the same record; None where it has none."""

    percent: float
    tflops: float | None

    def peaks(self) -> tuple[float, float] | None:
        """The lowest and highest peak in TFLOP/s that this MFU can be of; None without TFLOPs or a positive MFU."""
        if self.tflops is None or self.percent <= _HALF_A_DIGIT:
            return None
        edges = (self.percent + _HALF_A_DIGIT, self.percent - _HALF_A_DIGIT)
        return self.tflops * 100 / edges[0], self.tflops * 100 / edges[1]


@cache
def _figures() -> tuple[OwnFigure, ...]:
    return tuple(OwnFigure(**entry) for entry in read_data("own_figures")["figure"])


def find_faults(framework: str | None, model: Transformer | None) -> dict[str, tuple[str, int]]:
    """Known faults of a framework by name: the convention, and the operations for a token besides it."""
    if model is None:
        return {}
    return {
        figure.convention or "": (figure.to, 6 * model.hidden * model.vocabulary)
        for figure in _figures()
        if figure.to and figure.framework == framework and figure.tied == model.tied
    }


def explain_convention(convention: str | None, model: Transformer | None) -> tuple[str, ...]:
    """Why a log of this convention states other TFLOPs than ``megatron_core``."""
    tied = model.tied if model else None
    return tuple(
        figure.sentence()
        for figure in _figures()
        if convention and figure.convention == convention and figure.tied in (None, tied)
    )


def explain_mfu(
    framework: str | None, logged: LoggedMfu, gpu: str | None, peak_tflops: float | None
) -> tuple[str, ...]:
    """Of which peak a logged MFU is, where that is not the GPU's in TFLOP/s; empty where it is, or neither is known."""
    of_framework = [each for each in _figures() if framework and each.framework == framework and not each.convention]
    if logged.percent < 0:
        return tuple(each.sentence() for each in of_framework if each.negative)
    fixed = next((each for each in of_framework if each.peak_tflops), None)
    edges = (fixed.peak_tflops, fixed.peak_tflops) if fixed and fixed.peak_tflops else logged.peaks()
    reasons = (fixed.sentence(),) if fixed else ()
    if edges is None or peak_tflops is None or edges[0] / _SAME_PEAK <= peak_tflops <= edges[1] * _SAME_PEAK:
        return reasons
    own = sum(edges) / 2
    return (
        *reasons,
        f"Its MFU of {logged.percent:g} % is of about {own:.3g} TFLOP/s; the same TFLOPs are "
        f"{logged.percent * own / peak_tflops:.3g} % of the {peak_tflops:g} TFLOP/s of {gpu or '--peak'}.",
    )
