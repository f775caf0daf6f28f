"""What rules ask of a run: typed results, the time of its steps by rank, how it is set up, what it uses already."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence, Set
from enum import StrEnum
from functools import cached_property, reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from msgspec import Struct

from perfscope.analyzers.stragglers.devices import FIRST_SHARDED_STAGE
from perfscope.constants import NS_PER_US, US_PER_S

if TYPE_CHECKING:
    from perfscope.analyzers.breakdown import Breakdown, RankParts
    from perfscope.analyzers.calls import Calls, RankBlockingCalls
    from perfscope.analyzers.collectives import Collectives, GroupOperation
    from perfscope.analyzers.gpus import Gpus, GpuUsage
    from perfscope.analyzers.host import HostRank, HostTime
    from perfscope.analyzers.idle import Idle, RankIdle
    from perfscope.analyzers.kernels import Kernels, KernelWork
    from perfscope.analyzers.loop import Loop
    from perfscope.analyzers.memory import MemoryUse
    from perfscope.analyzers.mfu import Utilisation
    from perfscope.analyzers.modules import ModuleTree
    from perfscope.analyzers.operations import CountedOperations
    from perfscope.analyzers.optimizer import OptimizerTime
    from perfscope.analyzers.overlap import Overlap
    from perfscope.analyzers.pipeline_bubble.measurement import PipelineBubble
    from perfscope.analyzers.pipeline_steps import PipelineSteps
    from perfscope.analyzers.roofline import Roofline
    from perfscope.analyzers.saves import SaveTimes
    from perfscope.analyzers.setup import RankSetup, Setup
    from perfscope.analyzers.steps import RankSteps, StepTimes
    from perfscope.analyzers.stragglers.records import LateRanks
    from perfscope.analyzers.stragglers.traces import Stragglers
    from perfscope.analyzers.throttling import Throttling
    from perfscope.analyzers.whatif.scenarios import Regain


_T = TypeVar("_T")


class AnalyzerResults(Struct, frozen=True):
    """The results of the analyzers; None where one gave none."""

    breakdown: Breakdown | None = None
    calls: Calls | None = None
    collectives: Collectives | None = None
    gpus: Gpus | None = None
    host: HostTime | None = None
    idle: Idle | None = None
    kernels: Kernels | None = None
    late_ranks: LateRanks | None = None
    loop: Loop | None = None
    memory: MemoryUse | None = None
    mfu: Utilisation | None = None
    modules: ModuleTree | None = None
    operations: CountedOperations | None = None
    optimizer: OptimizerTime | None = None
    overlap: Overlap | None = None
    pipeline_bubble: PipelineBubble | None = None
    pipeline_steps: PipelineSteps | None = None
    roofline: Roofline | None = None
    saves: SaveTimes | None = None
    setup: Setup | None = None
    steps: StepTimes | None = None
    stragglers: Stragglers | None = None
    throttling: Throttling | None = None


#: What the device waits for while the host is late; the launching causes are those of a host that is too slow.
LAUNCHING = ("cuda_call", "operator", "between_operators", "host_launch", "launch_latency")
NOT_SHOWN, OUTSIDE_OPERATORS = "not_shown", "outside_operators"
_HOST_CAUSES = ("data_loading", "synchronisation", NOT_SHOWN, *LAUNCHING)
#: Where every host is late, passes hold up to six times their work, and those of all stages within 13 % as many times.
_STRETCHED = 1.25
POWER_CAP = "software power cap"

DEEPSPEED, MEGATRON, TRAINER, LIGHTNING, FSDP, DDP, TORCH = (
    "deepspeed", "megatron", "trainer", "lightning", "fsdp", "ddp", "torch",
)  # fmt: skip
#: What the step boundary says of the framework.
_BY_SOURCE = {
    "deepspeed": DEEPSPEED,
    "deepspeed_pipeline": DEEPSPEED,
    "megatron": MEGATRON,
    "megatron_optimizer": MEGATRON,
    "torchtitan": FSDP,
}
_BY_NAME = {"transformers": TRAINER, "lightning": LIGHTNING}
_ADVICE = tomllib.loads(Path(__file__).with_name("advice.toml").read_text("utf-8"))
_OPTION = re.compile(r"`(--[\w-]+)")
#: Kernels that torch.compile writes.
_COMPILED = re.compile(r"^triton_(?:poi|red|per|tem|for|split_scan)_")


class StepPart(StrEnum):
    """A part of a step, whose time limits what causes in it cost."""

    HOST = "the device waits for the host, or copies"
    COMMUNICATION = "exposed communication"
    COMPUTE = "computation"
    PIPELINE = "idle stages"
    OUTSIDE = "no part of a step"


def numbered(pointer: str, items: Sequence[_T]) -> list[tuple[str, _T]]:
    """The entries of a list in the results, each with its JSON pointer."""
    return [(f"{pointer}/{index}", item) for index, item in enumerate(items)]


class MeanStep(NamedTuple):
    """A mean step of one rank, in microseconds; on a GPU the device's time, on a processor the host's.

    ``host`` is idle time while the host was late, by cause. ``pointer`` and ``idle_pointer`` say where the times are.
    """

    rank: int | None
    pointer: str
    idle_pointer: str
    compute: float
    communication: float
    copy: float
    host: Mapping[str, float]
    steps: int

    @property
    def waits_for_host(self) -> float:
        """Idle time while the host was late."""
        return sum(self.host.values())

    @property
    def launches(self) -> float:
        """Idle time while the host launched too slowly."""
        return sum(self.host.get(cause, 0.0) for cause in LAUNCHING)

    def time_us(self, part: StepPart) -> float:
        """The time of a part of its step."""
        return {
            StepPart.HOST: self.waits_for_host + self.copy,
            StepPart.COMMUNICATION: self.communication,
            StepPart.COMPUTE: self.compute,
        }.get(part, 0.0)


class Stages(NamedTuple):
    """A pipeline as it was measured: by hooks in all steps, or by traces in the profiled ones.

    ``stages`` are the ranks of each stage and the time of its passes. Shares are of idle time over p x T; those of the
    schedule and of imbalance are 0, and ``theory`` is None, where the schedule was not recognised.
    """

    pointer: str
    section_us: float
    stages: tuple[tuple[tuple[int, ...], float], ...]
    schedule_share: float
    imbalance_share: float
    gaps_share: float
    theory: float | None
    schedule: str | None
    microbatches: int


class TracedRun:
    """One run, or some traces; ``regain`` answers what a scenario of ``perfscope whatif`` saves, or None."""

    def __init__(self, results: AnalyzerResults, regain: Callable[[str], Regain | None] = lambda _: None) -> None:
        self.results = results
        self.regain = regain

    @cached_property
    def setup(self) -> RankSetup | None:
        """How the first rank is set up; None where no hooks recorded it."""
        setup = self.results.setup
        return setup.ranks[0] if setup is not None else None

    @cached_property
    def step_ranks(self) -> list[tuple[str, RankSteps]]:
        """The recorded steps of each rank; empty without records."""
        return numbered("/steps/ranks", self.results.steps.ranks if self.results.steps is not None else ())

    @cached_property
    def call_ranks(self) -> list[tuple[str, RankBlockingCalls]]:
        """The calls that hold each rank's host up; empty without traces of a device."""
        return numbered("/calls/ranks", self.results.calls.ranks if self.results.calls is not None else ())

    @property
    def devices(self) -> Sequence[RankParts]:
        """The device time of each rank; empty without a device."""
        return self.results.breakdown.ranks if self.results.breakdown is not None else ()

    @property
    def has_device(self) -> bool:
        """Whether the traces show work on a GPU."""
        return bool(self.devices)

    @property
    def has_step_time(self) -> bool:
        """Whether the time of steps that nobody profiled is known."""
        return self.results.steps is not None and self.results.steps.step_time_s is not None

    @cached_property
    def step_us(self) -> float | None:
        """The step time of the run, or without one the mean profiled step.

        The host's steps are too short while it runs ahead of its device, which a short training may do throughout. So a
        step is at least as long as the device's work in it.
        """
        steps = self.results.steps
        return self._longest_us((steps.step_time_s or steps.profiled_s) if steps else None) or self._profiled_us or None

    @cached_property
    def median_us(self) -> float:
        """The median undisturbed step, or what the device does in one; without records the mean profiled one."""
        return self._longest_us(self.results.steps.median_s if self.results.steps else None) or self.step_us or 0.0

    @cached_property
    def busy_us(self) -> float:
        """How long the busiest device computes and copies in a profiled step; 0 without a device."""
        rows = ((device.row, max(len(device.steps), 1)) for device in self.devices)
        return max(((row.compute + row.exposed_copy) / steps / NS_PER_US for row, steps in rows), default=0.0)

    def _longest_us(self, step_s: float | None) -> float | None:
        return max(step_s * US_PER_S, self.busy_us) if step_s else None

    @property
    def base_us(self) -> float | None:
        """What shares are of: a step of the loop with everything between it and the next, and at least the step time.

        In a short loop the host only fills the queue of its device in most steps.
        """
        loop, step_us = self.results.loop, self.step_us
        return step_us if loop is None or step_us is None else max(loop.step_s * US_PER_S, step_us)

    @cached_property
    def unusual_steps(self) -> frozenset[str]:
        """The names of profiled steps with a save, a validation or a pause, which say nothing about others."""
        loop = self.results.loop
        return frozenset(f"ProfilerStep#{number}" for number in loop.unusual_steps) if loop is not None else frozenset()

    @cached_property
    def _profiled_us(self) -> float:
        windows = [
            (device.row.window, len(device.steps), device.outside.between if device.outside else 0)
            for device in self.devices
        ]
        if not windows and self.results.host is not None:
            windows = [(rank.total.window, len(rank.steps), 0) for rank in self.results.host.ranks]
        times_ns = (window / steps + between / max(steps - 1, 1) for window, steps, between in windows if steps)
        return max(times_ns, default=0.0) / NS_PER_US

    @cached_property
    def ranks(self) -> Sequence[MeanStep]:
        """The profiled steps of each rank; none without traces."""
        if self.has_device:
            idle: dict[tuple[str, int], tuple[str, RankIdle]] = {}
            for pointer, entry in numbered("/idle/ranks", self.results.idle.ranks if self.results.idle else ()):
                idle.setdefault((entry.trace, entry.device), (pointer, entry))
            return tuple(
                self._device_step(pointer, device, *idle.get((device.trace, device.device), ("", None)))
                for pointer, device in numbered("/breakdown/ranks", self.devices)
            )
        hosts = self.results.host.ranks if self.results.host is not None else ()
        return tuple(_host_step(pointer, host, self.unusual_steps) for pointer, host in numbered("/host/ranks", hosts))

    def _device_step(self, pointer: str, device: RankParts, idle_pointer: str, idle: RankIdle | None) -> MeanStep:
        count, parts = max(len(device.steps), 1), device.row
        compute, communication, copy = (
            ns / count / NS_PER_US for ns in (parts.compute, parts.exposed_communication, parts.exposed_copy)
        )
        # Between steps, too, where nothing else ran.
        gaps = max(count - 1, 1) + _outside_steps(device)
        host = dict.fromkeys(_HOST_CAUSES, 0.0)
        causes, marked = (None, None) if idle is None else (idle.causes, idle.marked)
        for cause in _HOST_CAUSES if causes is not None else ():
            whole_us = getattr(causes, f"{cause}_us")
            marked_us = None if marked is None else getattr(marked, f"{cause}_us")
            host[cause] = (
                whole_us / count if marked_us is None else marked_us / count + max(whole_us - marked_us, 0.0) / gaps
            )
        if self.unusual_steps and any(step.name in self.unusual_steps for step in device.steps):
            host[NOT_SHOWN] = 0.0
        measured = sum(host.values()) + communication
        # The profiler slows hosts, for which other ranks wait: a step that nobody profiled has no more time for both.
        spare = max(self.median_us - compute - copy, 0.0)
        scale = min(spare / measured, 1.0) if measured and self.has_step_time else 1.0
        return MeanStep(
            rank=device.rank,
            pointer=f"{pointer}/marked" if device.steps else pointer,
            idle_pointer=idle_pointer,
            compute=compute,
            communication=communication * scale,
            copy=copy,
            host={cause: us * scale for cause, us in host.items()},
            steps=count,
        )

    def part_us(self, *parts: StepPart) -> float:
        """The most time that a rank has in some parts of a step; infinite where no trace tells."""
        if not self.ranks or parts[0] is StepPart.OUTSIDE:
            return float("inf")
        longest_us = max(sum(rank.time_us(part) for part in parts) for rank in self.ranks)
        pipeline = self.pipeline
        if parts[0] is StepPart.PIPELINE:
            shares = (pipeline.schedule_share, pipeline.imbalance_share, pipeline.gaps_share) if pipeline else ()
            return sum(shares) * pipeline.section_us if pipeline else 0.0
        if parts[0] is StepPart.HOST and pipeline is not None:
            # Hosts of stages wait for what other stages send: what the bubble's measurement leaves is theirs.
            return min(longest_us, pipeline.gaps_share * pipeline.section_us)
        return longest_us

    @cached_property
    def most_exposed(self) -> MeanStep | None:
        """The rank with the longest exposed communication."""
        return max(self.ranks, key=lambda rank: rank.communication, default=None)

    @cached_property
    def compute_us(self) -> float:
        """The longest computation of a rank; without traces the step."""
        return max((rank.compute for rank in self.ranks), default=self.step_us or 0.0)

    @cached_property
    def pipeline(self) -> Stages | None:
        """A pipeline, by the hooks in every step, or in the profiled ones; None without one.

        The hooks' passes hold what a device waits for inside of them. Where a host makes those of one stage long, the
        traces count, which tell the device's work from its gaps.
        """
        traced, steps, timed = self.traced_pipeline, self.results.pipeline_steps, None
        if steps is not None and steps.section:
            gaps_share = steps.transfer_and_host_fraction_of_total
            timed = _pipeline("/pipeline_steps", steps, steps.section, gaps_share)
        if timed is None or traced is None:
            return timed or traced
        useful = [(of_hooks[1], of_traces[1]) for of_hooks, of_traces in zip(timed.stages, traced.stages, strict=False)]
        if len(timed.stages) != len(traced.stages) or not all(map(all, useful)):
            return timed
        stretched = [of_hooks / of_traces for of_hooks, of_traces in useful]
        return traced if max(stretched) > _STRETCHED * min(stretched) else timed

    @cached_property
    def traced_pipeline(self) -> Stages | None:
        """A pipeline as the devices' own work shows it; None where no traces tell it."""
        bubble = self.results.pipeline_bubble
        if bubble is None:
            return None
        return _pipeline("/pipeline_bubble", bubble, float(bubble.section), bubble.host_fraction_of_total)

    @cached_property
    def window_steps(self) -> float:
        """How many steps' work one rank's windows hold, the steps that are not marked included."""
        counts = [max(len(device.steps), 1) + _outside_steps(device) for device in self.devices]
        return sum(counts) / len(counts) if counts else 1.0

    def kernels(self, work: str, pattern: str = "") -> list[tuple[str, KernelWork]]:
        """The kernels of a kind, ``compute`` or ``copy``, with a text in their names."""
        names = self.results.kernels.names if self.results.kernels is not None else ()
        entries = numbered("/kernels/names", names)
        return [entry for entry in entries if entry[1].work == work and pattern in entry[1].name]

    def kernel_us(self, kernels: Sequence[tuple[str, KernelWork]]) -> float:
        """Time of some kernels in a step of one rank."""
        return sum(kernel.total_us for _, kernel in kernels) / self.window_steps / max(len(self.devices), 1)

    def exposed_copies_us(self, text: str) -> float:
        """The exposed part of a step's copies with a text in their names."""
        whole_us, such_us = (sum(copy.total_us for _, copy in self.kernels("copy", part)) for part in ("", text))
        return max((rank.copy for rank in self.ranks), default=0.0) * such_us / whole_us if whole_us else 0.0

    @property
    def operations(self) -> list[tuple[str, GroupOperation]]:
        """The collectives on the device."""
        collectives = self.results.collectives
        return numbered("/collectives/operations", collectives.operations if collectives is not None else ())

    @property
    def gpus(self) -> list[tuple[str, GpuUsage]]:
        """The GPUs that were sampled."""
        return numbered("/gpus", self.results.gpus.gpus if self.results.gpus is not None else ())

    @cached_property
    def is_power_capped(self) -> bool:
        """Whether a GPU reaches its power limit in most steps."""
        gpus = self.results.throttling.gpus if self.results.throttling is not None else ()
        capped = ((gpu, cause) for gpu in gpus for cause in gpu.causes if cause.cause == POWER_CAP)
        return any(2 * len(cause.steps) >= gpu.known_steps for gpu, cause in capped)

    @cached_property
    def used_memory(self) -> tuple[float, tuple[str, str]] | None:
        """The share of the fullest GPU that tensors ever used, and where that is; None where it is unknown."""
        peak, rank = max(self.step_ranks, key=lambda entry: entry[1].memory_peak_bytes or 0, default=("", None))
        total, gpu = max(self.gpus, key=lambda entry: entry[1].memory_total_bytes or 0, default=("", None))
        if rank is None or gpu is None or not rank.memory_peak_bytes or not gpu.memory_total_bytes:
            return None
        pointers = f"/results{peak}/memory_peak_bytes", f"/results{total}/memory_total_bytes"
        return rank.memory_peak_bytes / gpu.memory_total_bytes, pointers

    # What trains, and what it uses already.

    @cached_property
    def _frameworks(self) -> tuple[str, ...]:
        """What trains, the outermost first: its options are the ones that a user sets."""
        setup, source = self.setup, self.results.steps.source if self.results.steps is not None else ""
        names = [_BY_SOURCE[source]] if source in _BY_SOURCE else []
        if setup is not None:
            names += [_BY_NAME[name] for name in _BY_NAME if name in setup.frameworks]
            if setup.ddp is not None:
                names.append(DDP)
            elif setup.zero_stage == FIRST_SHARDED_STAGE and DEEPSPEED not in names:
                names.append(FSDP)
        return (*names, TORCH)

    def advise(self, about: str, *in_use: str, **values: str) -> str:
        """What ``advice.toml`` says to the outermost framework that has a choice that is not in use already.

        ``values`` are put into the text in place of their names in braces.
        """
        for entry in (_ADVICE[about].get(name, ()) for name in self._frameworks):
            texts = [entry] if isinstance(entry, str) else []
            for choice in () if texts else entry:
                text, unless = (choice, "-") if isinstance(choice, str) else (choice["text"], choice["unless"])
                option = _OPTION.match(text)
                if unless not in in_use and not (option and self.has_option(option[1])):
                    texts.append(text)
            if texts:
                return ", or ".join(texts).format(**values)
        return ""

    def has_option(self, name: str) -> bool:
        """Whether an option stands in the command line, such as ``--async-save``."""
        return self.setup is not None and name in (self.setup.options or {})

    @cached_property
    def in_use(self) -> tuple[str, ...]:
        """What ``advice.toml`` asks for: whether torch.compile wrote kernels, and the allocator may grow segments."""
        is_compiled = any(_COMPILED.search(kernel.name) for _, kernel in self.kernels("compute"))
        allocator = (self.results.setup.allocator or "") if self.results.setup is not None else ""
        is_expandable = "expandable_segments:true" in allocator.replace(" ", "").lower()
        return "compiled" if is_compiled else "eager", "expandable" if is_expandable else ""

    @property
    def has_stacks(self) -> bool:
        """Whether the traces hold the lines of Python that called."""
        return any(caller.function for _, rank in self.call_ranks for caller in rank.callers)


def _pipeline(
    pointer: str, measured: PipelineSteps | PipelineBubble, section_ns: float, gaps_share: float | None
) -> Stages:
    return Stages(
        pointer,
        section_ns / NS_PER_US,
        tuple((stage.ranks, float(stage.useful or 0) / NS_PER_US) for stage in measured.stages),
        measured.schedule_fraction_of_total or 0.0,
        measured.imbalance_fraction_of_total or 0.0,
        gaps_share or 0.0,
        measured.theory_fraction_of_total,
        measured.schedule,
        measured.microbatches,
    )


def _outside_steps(device: RankParts) -> float:
    return (device.outside.steps or 0.0) if device.outside is not None else 0.0


def _host_step(pointer: str, host: HostRank, unusual: Set[str]) -> MeanStep:
    kept = [step.parts for step in host.steps if step.name not in unusual]
    count, total = (len(kept), reduce(add, kept)) if kept else (max(len(host.steps), 1), host.total)
    other_us = total.other_us if kept or not host.steps else 0.0
    return MeanStep(
        rank=host.rank,
        pointer=pointer,
        idle_pointer=pointer,
        compute=total.compute_us / count,
        communication=total.exposed_communication_us / count,
        copy=0.0,
        host={"data_loading": total.exposed_data_loading_us / count, OUTSIDE_OPERATORS: other_us / count},
        steps=count,
    )
