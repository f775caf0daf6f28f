"""The bubble of a pipeline schedule before it runs, by simulation, and how it could be reduced.

The bubble is the part of p x T in which a stage is idle. T is the longest time of one stage from its first to its last
pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import ceil

from msgspec import Struct

from perfscope.errors import UsageError
from perfscope.report import Column, Section, percent
from perfscope.schedules.catalog import (
    ClosedForm,
    Schedule,
    StageTimes,
    chunks_per_device,
    closed_form,
    make_plan,
    require_possible,
)
from perfscope.schedules.operations import PassOrder
from perfscope.schedules.simulator import PassTimeline, UniformTiming, peak_in_flight, simulate

#: A step of more operations is not simulated: it would take some seconds, and there are up to ten alternatives.
SIMULATION_LIMIT = 200_000
_ALTERNATIVE_SCHEDULES = (
    Schedule.ONE_F_ONE_B,
    Schedule.ZB_H1,
    Schedule.ZB_H2,
    Schedule.ZBV,
    Schedule.DUALPIPE,
)


class PassTimes(Struct, frozen=True):
    """The times of one micro-batch on each of the p stages, in integer nanoseconds.

    ``backward`` is the whole backward pass, ``weight`` its weight gradient, ``transfer`` that to the next stage.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    weight: tuple[int, ...]
    transfer: tuple[int, ...]

    @property
    def mean(self) -> StageTimes:
        """The times of equal stages with the same work in total."""
        devices = len(self.forward)
        forward, backward, weight = (
            Fraction(sum(part), devices) for part in (self.forward, self.backward, self.weight)
        )
        return StageTimes(forward, backward - weight, weight)

    @property
    def are_equal(self) -> bool:
        """Whether all stages take the same time and transfers take none, which is what closed forms assume."""
        return not any(self.transfer) and all(
            len(set(part)) == 1 for part in (self.forward, self.backward, self.weight)
        )


class PipelineSetup(Struct, frozen=True):
    """A pipeline: its schedule, p stages, m micro-batches, v virtual stages on each stage, and the times of passes."""

    schedule: Schedule
    devices: int
    microbatches: int
    chunks: int
    times: PassTimes

    @property
    def operations(self) -> int:
        """Operations to simulate, at most."""
        return 3 * self.devices * self.microbatches * chunks_per_device(self.schedule, self.chunks)


class SimulatedStep(Struct, frozen=True):
    """One simulated step; times are ticks of 1 / ``ticks_per_ns`` ns, so that virtual stages divide exactly.

    ``peak_in_flight``: for each stage the most micro-batches whose activations it stores, in its share of the model.
    """

    timeline: PassTimeline
    ticks_per_ns: int
    peak_in_flight: tuple[Fraction, ...]

    @property
    def period_ns(self) -> Fraction:
        """The longest time of one stage from its first to its last pass."""
        return Fraction(self.timeline.period, self.ticks_per_ns)


class Alternative(Struct, frozen=True):
    """A change of the setup: its bubble, its relative throughput, and the most micro-batches in flight on a stage."""

    change: str
    fraction_of_total: Fraction
    speedup: Fraction
    peak_in_flight: Fraction


class ThroughputTarget(Struct, frozen=True):
    """The fewest micro-batches that reach a throughput in TFLOPs per GPU; absent where it is beyond the limit."""

    tflops: Fraction
    target_tflops: Fraction
    limit: Fraction
    microbatches: int | None


def apply_closed_form(setup: PipelineSetup) -> ClosedForm:
    """Apply the schedule's closed form to equal stages of the same total work."""
    return closed_form(setup.schedule, setup.devices, setup.microbatches, setup.times.mean, setup.chunks)


def simulate_setup(setup: PipelineSetup) -> SimulatedStep:
    """Simulate one step of a setup; UsageError where the schedule does not exist for its numbers."""
    chunks = chunks_per_device(setup.schedule, setup.chunks)
    plan = make_plan(setup.schedule, setup.devices, setup.microbatches, setup.chunks)
    peaks = tuple(Fraction(peak_in_flight(blocks), chunks) for blocks in plan.orders)
    return SimulatedStep(simulate(plan, _divide_times(setup, plan, chunks)), chunks, peaks)


def _divide_times(setup: PipelineSetup, plan: PassOrder, chunks: int) -> UniformTiming:
    """The times of virtual stages in ticks: each takes 1 / v of its stage, as many ticks as the stage takes ns."""
    devices = [_find_device(setup, stage) for stage in range(plan.stages)]
    times = setup.times
    forward, backward, weight = (
        tuple(part[device] for device in devices) for part in (times.forward, times.backward, times.weight)
    )
    return UniformTiming(forward, backward, weight, tuple(time * chunks for time in times.transfer))


def _find_device(setup: PipelineSetup, stage: int) -> int:
    if setup.schedule is Schedule.ZBV:
        return min(stage, 2 * setup.devices - 1 - stage)
    return stage % setup.devices


def list_alternatives(setup: PipelineSetup) -> tuple[Alternative, ...]:
    """The effect of more micro-batches, virtual stages or another schedule, each by itself; the setup comes first."""
    alternatives: list[Alternative] = []
    for change, changed in (("as it is", setup), *_list_changes(setup)):
        if changed.operations <= SIMULATION_LIMIT:
            step = simulate_setup(changed)
            bubble = step.timeline.fraction_of_period
            now = alternatives[0].fraction_of_total if alternatives else bubble
            alternatives.append(Alternative(change, bubble, (1 - bubble) / (1 - now), max(step.peak_in_flight)))
        elif changed is setup:
            break
    return tuple(alternatives)


def _list_changes(setup: PipelineSetup) -> Iterator[tuple[str, PipelineSetup]]:
    if setup.devices == 1:
        return
    count = setup.microbatches
    changes = [(f"{factor * count} micro-batches", setup.schedule, factor * count, setup.chunks) for factor in (2, 4)]
    changes += [
        (f"interleaved, {chunks} chunks per stage", Schedule.INTERLEAVED, count, chunks)
        for chunks in (2, 4)
        if (setup.schedule, setup.chunks) != (Schedule.INTERLEAVED, chunks) and count % setup.devices == 0
    ]
    changes += [
        (str(schedule), schedule, count, 1) for schedule in _ALTERNATIVE_SCHEDULES if schedule != setup.schedule
    ]
    for change, schedule, microbatches, chunks in changes:
        try:
            require_possible(schedule, setup.devices, microbatches, chunks)
        except UsageError:
            continue
        yield change, PipelineSetup(schedule, setup.devices, microbatches, chunks, setup.times)


def find_target(setup: PipelineSetup, tflops: Fraction, target_tflops: Fraction) -> ThroughputTarget:
    """How many micro-batches of the same size raise a measured throughput to a target.

    Throughput is proportional to m / (fixed + m x slowest). ``fixed`` is the time of filling and draining. ``slowest``
    is the time that a micro-batch adds: its time on the slowest stage.
    """
    fixed, slowest = _split_step_time(setup)
    limit = tflops * (fixed + setup.microbatches * slowest) / (setup.microbatches * slowest)
    if target_tflops > limit or (target_tflops == limit and fixed):
        return ThroughputTarget(tflops, target_tflops, limit, None)
    fewest = ceil(target_tflops * fixed / ((limit - target_tflops) * slowest)) if fixed else 1
    multiple = {Schedule.INTERLEAVED: setup.devices, Schedule.DUALPIPE: 2}.get(setup.schedule, 1)
    return ThroughputTarget(tflops, target_tflops, limit, max(-(-fewest // multiple) * multiple, 1))


def _split_step_time(setup: PipelineSetup) -> tuple[Fraction, Fraction]:
    """The part of a step's time that does not depend on the micro-batches, and the time that each of them adds."""
    times = setup.times
    slowest = Fraction(max(forward + backward for forward, backward in zip(times.forward, times.backward, strict=True)))
    form = apply_closed_form(setup)
    if times.are_equal and form.bubble is not None:
        return form.bubble, slowest
    return simulate_setup(setup).period_ns - setup.microbatches * slowest, slowest


def alternatives_section(alternatives: Sequence[Alternative]) -> Section:
    """The effect of changes, for people."""
    columns = (
        Column("Change"),
        Column("Bubble of the total (%)", 2),
        Column("Relative throughput", 3),
        Column("Micro-batches in flight"),
    )
    rows = tuple(
        (one.change, percent(one.fraction_of_total), float(one.speedup), float(one.peak_in_flight))
        for one in alternatives
    )
    notes = (
        "Each change by itself, with the same times per micro-batch. More micro-batches of the same size make the "
        "global batch larger.",
        "Micro-batches in flight: those whose activations the fullest stage stores at once, weighted by its share of "
        "the model; DualPipe also stores the weights twice.",
    )
    return Section("Alternatives", columns, rows, notes=notes)
