"""The share of a pipeline step that is idle by formula: equal stages, no transfer time.

Two denominators are in use. *Of the total* is idle time over the whole step. *Of the ideal* is idle time over useful
time, (p - 1) / m for 1F1B. They differ by a factor of 2 where m is about p. F, B and W are the times of one micro-batch
on one stage: forward pass, gradient of the input, weight gradient.
"""

from __future__ import annotations

from fractions import Fraction

from msgspec import Struct

from perfscope.schedules.catalog import Schedule


class StageTimes(Struct, frozen=True):
    """Times of one micro-batch on each of p equal stages: F, B and W."""

    forward: Fraction
    input_gradient: Fraction
    weight_gradient: Fraction

    @property
    def total(self) -> Fraction:
        """F + B + W."""
        return self.forward + self.input_gradient + self.weight_gradient


class ClosedForm(Struct, frozen=True):
    """The formula for the idle time of a stage, evaluated in the unit of the stage times; absent with a reason."""

    formula: str
    source: str
    useful: Fraction
    bubble: Fraction | None
    reason: str | None = None

    @property
    def fraction_of_total(self) -> Fraction | None:
        """Idle over idle and useful."""
        return None if self.bubble is None else self.bubble / (self.bubble + self.useful)

    @property
    def fraction_of_ideal(self) -> Fraction | None:
        """Idle over useful."""
        return None if self.bubble is None else self.bubble / self.useful


_NARAYANAN, _QI = "Narayanan et al. 2021, arXiv 2104.04473, section", "Qi et al. 2024, arXiv"
#: The formula of each schedule, and its source.
_FORMS = {
    Schedule.GPIPE: ("(p-1)(F+B+W)", "Huang et al. 2019, arXiv 1811.06965"),
    Schedule.ONE_F_ONE_B: ("(p-1)(F+B+W)", f"{_NARAYANAN} 2.2.1"),
    Schedule.INTERLEAVED: ("(p-1)(F+B+W)/v", f"{_NARAYANAN} 2.2.2"),
    Schedule.ZB_H1: ("(p-1)(F+B-W)", f"{_QI} 2401.10241, table 2"),
    Schedule.ZB_H2: ("(p-1)(F+B-2W)", f"{_QI} 2401.10241, table 2"),
    Schedule.ZBV: ("0 at F=B=W", f"{_QI} 2405.15362"),
    Schedule.DUALPIPE: (
        "(p/2-1)(F&B+Bfull-3W), F&B=F+B+W, Bfull=B+W",
        "DeepSeek-AI 2024, arXiv 2412.19437, table 2",
    ),
}


def closed_form(schedule: Schedule, devices: int, microbatches: int, times: StageTimes, chunks: int = 1) -> ClosedForm:
    """The idle time of a stage by the schedule's formula, with ``chunks`` virtual stages on a device."""
    reason = _find_limitation(schedule, devices, microbatches, times, chunks)
    formula, source = _FORMS[schedule]
    return ClosedForm(
        formula=formula,
        source=source,
        useful=microbatches * times.total,
        bubble=_bubble(schedule, devices, times, chunks) if reason is None else None,
        reason=reason,
    )


def _bubble(schedule: Schedule, devices: int, times: StageTimes, chunks: int) -> Fraction:
    forward, inputs, weights = times.forward, times.input_gradient, times.weight_gradient
    if schedule is Schedule.ZB_H1:
        return (devices - 1) * (forward + inputs - weights)
    if schedule is Schedule.ZB_H2:
        return (devices - 1) * (forward + inputs - 2 * weights)
    if schedule is Schedule.ZBV:
        return Fraction(0)
    if schedule is Schedule.DUALPIPE:
        return (Fraction(devices, 2) - 1) * (times.total + inputs + weights - 3 * weights)
    return (devices - 1) * times.total / chunks


def _find_limitation(schedule: Schedule, devices: int, microbatches: int, times: StageTimes, chunks: int) -> str | None:
    if schedule is Schedule.INTERLEAVED and chunks > 1 and microbatches % devices:
        return f"it needs micro-batches that are a multiple of the stages, not {microbatches} and {devices}"
    if schedule is Schedule.ZBV and not times.forward == times.input_gradient == times.weight_gradient:
        return "it is published for F = B = W only"
    fewest = {Schedule.ZB_H1: devices, Schedule.ZB_H2: 2 * devices - 1, Schedule.ZBV: 2 * devices - 1}
    if microbatches < fewest.get(schedule, 1):
        return f"it needs at least {fewest[schedule]} micro-batches to fill the pipeline"
    if _bubble(schedule, devices, times, 1) < 0:
        return "it is negative: the weight gradient takes too long"
    return None
