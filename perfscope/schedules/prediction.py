"""What a pipeline schedule will cost before it runs: formula, simulation, drawing, and what would change it.

The bubble is the part of p x T in which a stage has no work. T is the longest time of one stage from its first to its
last work; but for the zero-bubble schedules that is the time from the first forward to the end of the last backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from perfscope.errors import UsageError
from perfscope.schedules.closed_forms import ClosedForm, StageTimes, closed_form
from perfscope.schedules.orders import Plan, Schedule, check, chunks_of, plan
from perfscope.schedules.simulator import Costs, Timeline, peak_in_flight, simulate

#: More operations than this are not simulated (some seconds); the formula still answers.
MOST_OPERATIONS = 600_000
#: The same for each of the alternatives, of which there are ten.
_MOST_OPERATIONS_OF_AN_ALTERNATIVE = 100_000


@dataclass(frozen=True, slots=True)
class Times:
    """Times of one micro-batch on each of the p stages, in integer nanoseconds.

    Attributes:
        forward: Of the forward pass.
        backward: Of the whole backward pass.
        weight: The part of it that is the gradient of the weights.
        transfer: For which what a stage sends to its neighbour is under way.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    weight: tuple[int, ...]
    transfer: tuple[int, ...]

    @property
    def mean(self) -> StageTimes:
        """Equal stages with the same work in all."""
        devices = len(self.forward)
        forward, backward, weight = (
            Fraction(sum(part), devices) for part in (self.forward, self.backward, self.weight)
        )
        return StageTimes(forward, backward - weight, weight)

    @property
    def equal(self) -> bool:
        """Whether every stage takes the same time and transfers take none: where a formula applies as it is."""
        return not any(self.transfer) and all(
            len(set(part)) == 1 for part in (self.forward, self.backward, self.weight)
        )


@dataclass(frozen=True, slots=True)
class Setup:
    """A pipeline: its schedule, p stages, m micro-batches, v chunks a stage, and what each takes."""

    schedule: Schedule
    devices: int
    microbatches: int
    chunks: int
    times: Times

    @property
    def operations(self) -> int:
        """How much there is to simulate."""
        return 3 * self.devices * self.microbatches * chunks_of(self.schedule, self.chunks)


@dataclass(frozen=True, slots=True)
class Simulated:
    """One simulated step; times are ticks of 1 / ``ticks_per_ns`` ns, so that chunks divide exactly.

    Attributes:
        timeline: When what ran.
        ticks_per_ns: Chunks a stage.
        peak_in_flight: For each stage the most micro-batches whose activations it holds, in its share of the model.
    """

    timeline: Timeline
    ticks_per_ns: int
    peak_in_flight: tuple[Fraction, ...]

    @property
    def section_ns(self) -> Fraction:
        """From the first forward to the end of the last backward."""
        return Fraction(self.timeline.section, self.ticks_per_ns)

    @property
    def period_ns(self) -> Fraction:
        """The longest time of one stage from its first to its last work."""
        return Fraction(self.timeline.period, self.ticks_per_ns)


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another way to run, and what it gives.

    Attributes:
        change: What is different.
        fraction_of_total: Its bubble.
        speedup: Useful work a second over that of the setup asked for.
        peak_in_flight: The most micro-batches whose activations a stage holds; absent where the formula answered.
    """

    change: str
    fraction_of_total: Fraction
    speedup: Fraction
    peak_in_flight: Fraction | None


@dataclass(frozen=True, slots=True)
class Target:
    """How many micro-batches until a throughput is reached.

    Attributes:
        tflops: Measured at the setup's micro-batches.
        wanted: To be reached.
        limit: What ever more micro-batches approach, and never reach.
        microbatches: Enough of them; absent where the limit is too low.
    """

    tflops: Fraction
    wanted: Fraction
    limit: Fraction
    microbatches: int | None


def formula(setup: Setup) -> ClosedForm:
    """The closed form for equal stages of the same total work."""
    return closed_form(setup.schedule, setup.devices, setup.microbatches, setup.times.mean, setup.chunks)


def simulated(setup: Setup) -> Simulated:
    """Simulate a setup.

    Raises:
        UsageError: The schedule does not exist for its numbers.
    """
    chunks = chunks_of(setup.schedule, setup.chunks)
    order = plan(setup.schedule, setup.devices, setup.microbatches, setup.chunks)
    held = tuple(Fraction(peak_in_flight(blocks), chunks) for blocks in order.orders)
    return Simulated(simulate(order, _costs(setup, order, chunks)), chunks, held)


def _costs(setup: Setup, order: Plan, chunks: int) -> Costs:
    """Times of virtual stages in ticks: a chunk takes 1 / v of its stage, as many ticks as the stage has ns."""
    owner = [_owner(setup, stage) for stage in range(order.stages)]
    times = setup.times
    forward, backward, weight = (
        tuple(part[device] for device in owner) for part in (times.forward, times.backward, times.weight)
    )
    return Costs(forward, backward, weight, tuple(time * chunks for time in times.transfer))


def _owner(setup: Setup, stage: int) -> int:
    if setup.schedule is Schedule.ZBV:
        return min(stage, 2 * setup.devices - 1 - stage)
    return stage % setup.devices


def alternatives(setup: Setup) -> tuple[Alternative, ...]:
    """What more micro-batches, chunks or another schedule would give, each by itself; the setup comes first."""
    now = _share(setup)
    if now is None:
        return ()
    found = [Alternative("as it is", now[0], Fraction(1), now[1])]
    for change, other in _others(setup):
        try:
            check(other.schedule, other.devices, other.microbatches, other.chunks)
        except UsageError:
            continue
        then = _share(other)
        if then is not None:
            found.append(Alternative(change, then[0], (1 - then[0]) / (1 - now[0]), then[1]))
    return tuple(found)


def _share(setup: Setup) -> tuple[Fraction, Fraction | None] | None:
    """Bubble and micro-batches in memory: simulated, by formula where there is too much to simulate, else absent."""
    if setup.operations <= _MOST_OPERATIONS_OF_AN_ALTERNATIVE:
        result = simulated(setup)
        return result.timeline.fraction_of_period, max(result.peak_in_flight)
    share = formula(setup).fraction_of_total if setup.times.equal else None
    return None if share is None else (share, None)


def _others(setup: Setup) -> Sequence[tuple[str, Setup]]:
    def other(schedule: Schedule, microbatches: int, chunks: int) -> Setup:
        return Setup(schedule, setup.devices, microbatches, chunks, setup.times)

    count = setup.microbatches
    more = [
        (f"{factor * count} micro-batches", other(setup.schedule, factor * count, setup.chunks)) for factor in (2, 4)
    ]
    chunked = [
        (f"interleaved, {chunks} chunks a stage", other(Schedule.INTERLEAVED, count, chunks))
        for chunks in (2, 4)
        if (setup.schedule, setup.chunks) != (Schedule.INTERLEAVED, chunks) and count % setup.devices == 0
    ]
    named = [Schedule.ONE_F_ONE_B, Schedule.ZB_H1, Schedule.ZB_H2, Schedule.ZBV, Schedule.DUALPIPE]
    schedules = [(str(schedule), other(schedule, count, 1)) for schedule in named if schedule is not setup.schedule]
    return [*more, *chunked, *schedules] if setup.devices > 1 else []


def target(setup: Setup, tflops: Fraction, wanted: Fraction) -> Target:
    """How many micro-batches of the same size bring a throughput that was measured to one that is wanted.

    Work a second is m / (fixed + m x slowest), where ``fixed`` is what filling and draining cost and ``slowest`` is
    what one more micro-batch costs: the time of the slowest stage.
    """
    fixed, slowest = _growth(setup)
    limit = tflops * (fixed + setup.microbatches * slowest) / (setup.microbatches * slowest)
    if wanted > limit or (wanted == limit and fixed):
        return Target(tflops, wanted, limit, None)
    enough = ceil(wanted * fixed / ((limit - wanted) * slowest)) if fixed else 1
    multiple = {Schedule.INTERLEAVED: setup.devices, Schedule.DUALPIPE: 2}.get(setup.schedule, 1)
    return Target(tflops, wanted, limit, max(-(-enough // multiple) * multiple, 1))


def _growth(setup: Setup) -> tuple[Fraction, Fraction]:
    """What a step costs whatever its micro-batches, and what each of them adds."""
    times = setup.times
    slowest = Fraction(max(forward + backward for forward, backward in zip(times.forward, times.backward, strict=True)))
    form = formula(setup)
    if times.equal and form.bubble is not None:
        return form.bubble, slowest
    return simulated(setup).period_ns - setup.microbatches * slowest, slowest
