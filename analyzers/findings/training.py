"""What rules ask of a run: the time of its steps by rank, how it is set up, and the framework that ran."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import Struct

from perfscope.analyzers.findings.facts import Facts, RowsOfKeys, to_number
from perfscope.analyzers.findings.replays import Fixes
from perfscope.constants import US_PER_S

if TYPE_CHECKING:
    from perfscope.analyzers.replay.scenarios import Regain

_HOST_CAUSES = (
    "data_loading", "synchronisation", "cuda_call", "operator", "between_operators", "not_shown", "host_launch",
    "launch_latency",
)  # fmt: skip
_HOST_KEYS = {cause: f"{cause}_us" for cause in _HOST_CAUSES}

_TIMED_PIPELINE, _TRACED_PIPELINE = "/pipeline_steps", "/pipeline_bubble"
#: Where every host is late, passes hold up to six times their work, and those of all stages within 13 % as many times.
_STRETCHED = 1.25

POWER_CAP = "software power cap"
#: A limit that is lower than the GPU's own was set by somebody.
LEAST_OWN_LIMIT = 0.97
#: In so many steps a limit is no accident, and with a clock that is so much lower it is worth a line.
_MOSTLY, _LOWERED_CLOCK = 0.5, 0.9


class RankStep(Struct, frozen=True):
    """A mean step of one rank, in microseconds; on a GPU the device's time, on a processor the host's.

    Attributes:
        rank: The rank.
        pointer: Where its times are.
        idle_pointer: Where its idle time by cause is; the same on a processor.
        compute: Computation.
        communication: Exposed communication.
        copy: Exposed copies.
        host: Idle time while the host was late, by cause.
        steps: How many steps the times are of.
    """

    rank: int
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


class OwnLimit(Struct, frozen=True):
    """A GPU's own power limit, in watts, the clock to which it holds the GPU down, and in which share of the steps."""

    limit_w: float
    clock_mhz: float
    highest_mhz: float
    share: float


class Training:
    """One run, or some traces.

    Args:
        facts: The results of the analyzers.
        fixes: Replays the profiled steps without a cause; absent without traces.
    """

    def __init__(self, facts: Facts, fixes: Fixes | None = None) -> None:
        self.facts = facts
        self._fixes = fixes

    def regain(self, scenario: str) -> Regain | None:
        """What the replay says that a step takes less with this change; None without traces."""
        return None if self._fixes is None else self._fixes.regain(scenario)

    @cached_property
    def has_device(self) -> bool:
        """Whether the traces show work on a GPU."""
        return bool(self.facts.rows("/breakdown/ranks"))

    @cached_property
    def step_us(self) -> float | None:
        """The step time of the run, or without one the mean profiled step.

        The host's steps are too short while it runs ahead of its device, which a short training may do throughout. So a
        step is at least as long as the device's work in it.
        """
        facts = self.facts
        seconds = facts.amount("/steps/step_time_s") or facts.amount("/steps/profiled_s")
        if seconds:
            return max(seconds * US_PER_S, *(self._busy_us(row) for row in facts.rows("/breakdown/ranks")), 0.0)
        return max((_profiled_us(self.facts, row) for row in self._profiled_rows), default=0.0) or None

    @cached_property
    def median_us(self) -> float | None:
        """The median undisturbed step, or what the device does in one; without records the mean profiled one."""
        seconds = self.facts.number("/steps/median_s")
        if not seconds:
            return self.step_us
        return max(seconds * US_PER_S, *(self._busy_us(row) for row in self.facts.rows("/breakdown/ranks")), 0.0)

    @cached_property
    def ranks(self) -> Sequence[RankStep]:
        """The profiled steps of each rank; none without traces."""
        if self.has_device:
            return tuple(self._device_step(row) for row in self.facts.rows("/breakdown/ranks"))
        return tuple(self._host_step(row) for row in self.facts.rows("/host/ranks"))

    def ranks_but(self, number: float | None) -> Iterator[RankStep]:
        """The profiled steps of all ranks but one."""
        return (rank for rank in self.ranks if rank.rank != number)

    @cached_property
    def largest(self) -> RankStep | None:
        """The rank whose device waits longest for its host."""
        return max(self.ranks, key=lambda rank: rank.waits_for_host, default=None)

    @cached_property
    def is_undisturbed(self) -> bool:
        """Whether the profiled steps are known not to be slowed, or to be corrected for it."""
        return self.facts.number("/steps/step_time_s") is not None or self.facts.text("/breakdown/window") == "light"

    @cached_property
    def own_limit(self) -> OwnLimit | None:
        """The GPU whose own power limit holds its clock down most, in most steps; None where it does on none."""
        limits = [limit for limit in self._own_limits if limit is not None]
        return min(limits, key=lambda limit: limit.clock_mhz / limit.highest_mhz, default=None)

    @property
    def is_power_limited(self) -> bool:
        """Whether pauses may cost a step nothing: GPUs at their own limit save power in them, and compute faster."""
        return bool(self._own_limits) and None not in self._own_limits

    @cached_property
    def _own_limits(self) -> list[OwnLimit | None]:
        return [self._own_limit(row) for row in self.facts.rows("/throttling")]

    def _own_limit(self, row: str) -> OwnLimit | None:
        facts, uuid = self.facts, self.facts.text(f"{row}/uuid")
        gpu = next((gpu for gpu in facts.rows("/gpus") if facts.text(f"{gpu}/uuid") == uuid), "")
        limit, own = facts.amount(f"{gpu}/power_limit_w"), facts.amount(f"{gpu}/power_limit_default_w")
        clock, highest = facts.amount(f"{row}/hit_mhz"), facts.amount(f"{gpu}/sm_clock_max_mhz")
        causes = [cause for cause in facts.rows(f"{row}/causes") if facts.text(f"{cause}/cause") == POWER_CAP]
        steps, covered = sum(len(facts.rows(f"{cause}/steps")) for cause in causes), facts.amount(f"{row}/known_steps")
        if not limit or limit < LEAST_OWN_LIMIT * own or not covered or steps < _MOSTLY * covered:
            return None
        if not 0 < clock < _LOWERED_CLOCK * highest:
            return None
        return OwnLimit(limit, clock, highest, min(steps / covered, 1.0))

    @cached_property
    def pipeline(self) -> str:
        """Where a pipeline was measured, by the hooks in every step or in the profiled ones; empty without one.

        The hooks' passes hold what a device waits for inside of them. Where a host makes those of one stage long, the
        traces count, which tell the device's work from its gaps.
        """
        if self._hosts_stretch_passes:
            return _TRACED_PIPELINE
        return self._measured(_TIMED_PIPELINE) or self.traced_pipeline

    @cached_property
    def traced_pipeline(self) -> str:
        """Where the devices' own work in a pipeline was measured; empty where no traces tell it."""
        return self._measured(_TRACED_PIPELINE)

    def _measured(self, name: str) -> str:
        return name if self.facts.number(f"{name}/section_us") else ""

    @cached_property
    def _hosts_stretch_passes(self) -> bool:
        """Whether the passes of one stage are longer, over its device's work, than those of another one."""
        timed, traced = (
            {self.facts.number(f"{row}/stage"): self.facts.amount(f"{row}/useful_us") for row in self.facts.rows(rows)}
            for rows in (f"{_TIMED_PIPELINE}/stages", f"{_TRACED_PIPELINE}/stages")
        )
        if timed.keys() != traced.keys() or not all((*timed.values(), *traced.values())) or not timed:
            return False
        stretched = [timed[stage] / traced[stage] for stage in timed]
        return max(stretched) > _STRETCHED * min(stretched)

    @cached_property
    def window_steps(self) -> float:
        """How many steps' work one rank's windows hold, the steps that are not marked included."""
        rows = self.facts.rows("/breakdown/ranks")
        counts = (
            max(len(self.facts.rows(f"{row}/steps")), 1) + self.facts.amount(f"{row}/outside/steps") for row in rows
        )
        return sum(counts) / len(rows) if rows else 1.0

    def kernel_us(self, rows: Sequence[str]) -> float:
        """Time of some kernels in a step of one rank."""
        devices = max(len(self.facts.rows("/breakdown/ranks")), 1)
        return sum(self.facts.amount(f"{row}/total_us") for row in rows) / self.window_steps / devices

    def exposed_copies_us(self, text: str) -> float:
        """The exposed part of a step's copies with a text in their names."""
        facts = self.facts
        rows = [row for row in facts.rows("/kernels/names") if facts.text(f"{row}/work") == "copy"]
        whole_us = sum(facts.amount(f"{row}/total_us") for row in rows)
        such_us = sum(facts.amount(f"{row}/total_us") for row in rows if text in facts.text(f"{row}/name"))
        return max((rank.copy for rank in self.ranks), default=0.0) * such_us / whole_us if whole_us else 0.0

    @property
    def _profiled_rows(self) -> Sequence[str]:
        return self.facts.rows("/breakdown/ranks") or self.facts.rows("/host/ranks")

    def _busy_us(self, pointer: str) -> float:
        """How long a rank's device computes and copies in a profiled step."""
        times = f"{pointer}/marked" if self.facts.value(f"{pointer}/marked") else pointer
        count = max(len(self.facts.rows(f"{pointer}/steps")), 1)
        return sum(self.facts.amount(f"{times}/{name}_us") for name in ("compute", "exposed_copy")) / count

    def _device_step(self, pointer: str) -> RankStep:
        facts, count = self.facts, max(len(self.facts.rows(f"{pointer}/steps")), 1)
        times = f"{pointer}/marked" if facts.value(f"{pointer}/marked") else pointer
        compute, communication, copy = (
            facts.amount(f"{times}/{name}_us") / count for name in ("compute", "exposed_communication", "exposed_copy")
        )
        idle_pointer = self._idle_pointer(pointer)
        host = self._late_host(pointer, idle_pointer, count)
        spare = (self.median_us or 0.0) - compute - copy
        measured = sum(host.values()) + communication
        # The profiler slows hosts, for which other ranks wait: a step that nobody profiled has no more time for both.
        scale = min(max(spare, 0.0) / measured, 1.0) if measured and facts.number("/steps/step_time_s") else 1.0
        return RankStep(
            rank=facts.rank(pointer),
            pointer=times,
            idle_pointer=idle_pointer,
            compute=compute,
            communication=communication * scale,
            copy=copy,
            host={cause: us * scale for cause, us in host.items()},
            steps=count,
        )

    def _late_host(self, pointer: str, idle_pointer: str, count: int) -> dict[str, float]:
        """Idle time in a step by what the host did: within steps, and between them, where nothing else ran."""
        facts = self.facts
        gaps = max(count - 1, 1) + facts.amount(f"{pointer}/outside/steps")
        causes, of_steps = facts.members(f"{idle_pointer}/causes"), facts.members(f"{idle_pointer}/marked")
        host = {}
        for cause, key in _HOST_KEYS.items():
            whole, marked = to_number(causes.get(key)) or 0.0, to_number(of_steps.get(key))
            host[cause] = whole / count if marked is None else marked / count + max(whole - marked, 0.0) / gaps
        return host

    def _idle_pointer(self, pointer: str) -> str:
        """Where the idle time of a device of a trace is; of several of one, the first."""
        device, rows = self._device_of(pointer), self.facts.rows("/idle/ranks")
        return next((rows[row] for row in self._idle_rows.of(device) if self._device_of(rows[row]) == device), "")

    @cached_property
    def _idle_rows(self) -> RowsOfKeys:
        """The rows of idle time by device and trace."""
        return RowsOfKeys(map(self._device_of, self.facts.rows("/idle/ranks")))

    def _device_of(self, pointer: str) -> tuple[str, int]:
        return self.facts.text(f"{pointer}/trace"), int(self.facts.amount(f"{pointer}/device"))

    def _host_step(self, pointer: str) -> RankStep:
        facts, count = self.facts, max(len(self.facts.rows(f"{pointer}/steps")), 1)
        return RankStep(
            rank=facts.rank(pointer),
            pointer=pointer,
            idle_pointer=pointer,
            compute=facts.amount(f"{pointer}/compute_us") / count,
            communication=facts.amount(f"{pointer}/exposed_communication_us") / count,
            copy=0.0,
            host={
                "data_loading": facts.amount(f"{pointer}/exposed_data_loading_us") / count,
                "outside_operators": facts.amount(f"{pointer}/other_us") / count,
            },
            steps=count,
        )


def _profiled_us(facts: Facts, pointer: str) -> float:
    """A mean profiled step, with the time between the steps."""
    steps = facts.rows(f"{pointer}/steps")
    if not steps:
        return 0.0
    window = facts.amount(f"{pointer}/marked/window_us") or facts.amount(f"{pointer}/window_us")
    between = facts.amount(f"{pointer}/between_steps_us") / max(len(steps) - 1, 1) if len(steps) > 1 else 0.0
    return window / len(steps) + between
