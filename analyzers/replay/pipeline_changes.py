"""Other pipelines: more or fewer micro-batches, another schedule.

The passes of the measured pipeline give the times of forward and backward passes on each stage. The measured schedule
and the changed one are simulated with them; what the measured section takes beyond its simulation (transfers, the host,
unequal micro-batches) is taken to grow with it. What a step does outside the section stays.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from statistics import median

from perfscope.analyzers.pipelines.bubble import MeasuredBubble, make_setup
from perfscope.analyzers.pipelines.layout import find_pipelines
from perfscope.analyzers.pipelines.measurement import measure_pipelines
from perfscope.analyzers.replay.accumulation import accumulate, parse_count
from perfscope.analyzers.replay.changes import Changed
from perfscope.analyzers.replay.measured import Measured
from perfscope.errors import MissingInput, UsageError
from perfscope.schedules.catalog import Schedule
from perfscope.schedules.prediction import PassTimes, Setup, simulate_setup

_DEFAULT_CHUNKS = 2


@dataclass(frozen=True, slots=True)
class MeasuredPipeline:
    """The pipeline of a job.

    Attributes:
        setup: Its schedule, and the times of passes.
        ranks: The ranks of each stage.
        section_ns: Its measured section, from the first forward pass to the end of the last backward pass, without
            what the profiler cost the host.
        simulated_ns: The section by simulation.
    """

    setup: Setup
    ranks: tuple[tuple[int, ...], ...]
    section_ns: float
    simulated_ns: float

    def added_by(self, setup: Setup) -> float:
        """What a step takes more with another setup; negative where it takes less."""
        return float(simulate_setup(setup).section_ns) * self.section_ns / self.simulated_ns - self.section_ns


def _measure_bubble(measured: Measured) -> MeasuredBubble:
    passes = [graph.passes for graph in measured.job.ranks if graph.passes is not None]
    if not passes:
        raise MissingInput("no pipeline: no trace holds transfers between stages or marked micro-batches")
    return measure_pipelines(find_pipelines(passes))


def find_stages(measured: Measured) -> tuple[tuple[int, ...], ...]:
    """The ranks of each stage: one for each pipeline that runs side by side.

    Raises:
        MissingInput: The traces show no pipeline.
    """
    return _measure_bubble(measured).ranks


def measure_pipeline(measured: Measured) -> MeasuredPipeline:
    """The pipeline of a job.

    Raises:
        MissingInput: The traces show none, or its schedule has no name.
    """
    bubble = _measure_bubble(measured)
    setup = make_setup(bubble)
    if setup is None or bubble.section_ns is None:
        raise MissingInput("the schedule of the pipeline was not recognised, or a stage has no trace")
    simulated_ns = float(simulate_setup(setup).section_ns)
    return MeasuredPipeline(setup, bubble.ranks, float(bubble.section_ns) - measured.relief_ns, simulated_ns)


def equalize_stages(measured: Measured, ranks: Collection[int | None]) -> Changed:
    """The passes of these ranks' stages take at most the median of the other stages."""
    pipeline = measure_pipeline(measured)
    slow = [stage for stage, members in enumerate(pipeline.ranks) if set(members) & set(ranks)]
    times = pipeline.setup.times
    equal = PassTimes(
        forward=_equalize(times.forward, slow),
        backward=_equalize(times.backward, slow),
        weight=_equalize(times.weight, slow),
        transfer=times.transfer,
    )
    added_ns = pipeline.added_by(replace(pipeline.setup, times=equal))
    sentences = (
        "The passes of a stage take their own time or the median of the other stages, whichever is less: a stage with "
        "more layers counts as slow.",
    )
    return _change_passes(measured, sentences, added_ns, _DOUBT * abs(added_ns))


def _change_passes(measured: Measured, sentences: Sequence[str], added_ns: float, doubt_ns: float) -> Changed:
    """A step with other passes: they are simulated, not replayed, and start from the step as it was measured."""
    return Changed(measured.times, tuple(sentences), added_ns=added_ns, start_ns=measured.usual_ns, doubt_ns=doubt_ns)


#: How far the simulation of a change of passes may be off, as a share of what it saves.
_DOUBT = 0.1


def _equalize(times: tuple[int, ...], slow: Collection[int]) -> tuple[int, ...]:
    equal = list(times)
    for stage in slow:
        others = [time for other, time in enumerate(times) if other != stage]
        equal[stage] = min(times[stage], round(median(others or times)))
    return tuple(equal)


def change_micro_batches(measured: Measured, value: str) -> Changed:
    """A step of so many micro-batches of the measured size: of the pipeline, or accumulated."""
    if not any(graph.passes is not None for graph in measured.job.ranks):
        return accumulate(measured, value, "microbatches")
    count = parse_count("microbatches", value)
    pipeline = measure_pipeline(measured)
    return _change(measured, pipeline, replace(pipeline.setup, microbatches=count))


def change_schedule(measured: Measured, value: str) -> Changed:
    """The pipeline follows another schedule, with as many micro-batches."""
    name, _, chunks = value.partition(":")
    if name not in set(Schedule):
        raise UsageError(f"schedule={value} names no schedule", hint=f"schedules: {', '.join(Schedule)}")
    if chunks and name != Schedule.INTERLEAVED:
        raise UsageError(f"schedule={value}: {name} has no chunks to choose", hint="schedule=interleaved:2")
    pipeline = measure_pipeline(measured)
    is_interleaved = name == Schedule.INTERLEAVED
    count = parse_count("schedule", chunks) if chunks else (_DEFAULT_CHUNKS if is_interleaved else 1)
    return _change(measured, pipeline, replace(pipeline.setup, schedule=Schedule(name), chunks=count))


def _change(measured: Measured, pipeline: MeasuredPipeline, setup: Setup) -> Changed:
    now = pipeline.setup
    added_ns = pipeline.added_by(setup)
    beyond = pipeline.section_ns / pipeline.simulated_ns - 1
    sentences = [
        f"Simulated with the passes of {now.schedule} with {now.microbatches} micro-batches on {now.devices} stages: "
        f"they took {beyond:.1%} longer than their simulation, and so would the changed ones.",
    ]
    # Half of what the simulation does not explain of the change.
    doubt_ns = abs(beyond) / (1 + beyond) * abs(added_ns) / 2
    doubt_of_transfers = doubt_transfers(now, setup)
    if doubt_of_transfers:
        sentences.append(_OTHER_TRANSFERS)
        doubt_ns += doubt_of_transfers * (pipeline.section_ns + added_ns)
    return _change_passes(measured, sentences, added_ns, doubt_ns)


def doubt_transfers(now: Setup, then: Setup) -> float:
    """How far the simulation of another schedule may be off for its transfers, as a share of the pipeline's time."""
    if {now.schedule, then.schedule} <= set(_SIMPLE) or (now.schedule, now.chunks) == (then.schedule, then.chunks):
        return 0.0
    is_alike = now.schedule not in _SIMPLE and then.schedule not in _SIMPLE
    return _DOUBT_AMONG_OTHERS if is_alike else _DOUBT_OF_TRANSFERS


#: Schedules with one transfer for each pass, which every framework runs alike.
_SIMPLE = (Schedule.GPIPE, Schedule.ONE_F_ONE_B)
_OTHER_TRANSFERS = (
    "Not to be relied on: transfers are taken to run beside the passes and beside each other. NCCL runs those of a "
    "rank one after the other on one stream, where a receive that waits holds up what is behind it; with two chunks or "
    "a split backward pass there are three times as many, and torch.distributed.pipelining was slower than with 1F1B."
)
#: By so much of a pipeline's time predictions were off, on four H200 with two chunks or a split backward pass.
_DOUBT_OF_TRANSFERS = 0.7
#: By so much from one of these schedules to another, on quarters of a GPU.
_DOUBT_AMONG_OTHERS = 0.25
