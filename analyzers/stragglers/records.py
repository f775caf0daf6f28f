"""Which rank is late, in which steps, what that costs, and why: from the records of every step, without a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from perfscope.analyzers.communication.process_groups import role_of
from perfscope.analyzers.shared.step_selection import last_attempts
from perfscope.analyzers.stragglers.devices import DevicePace, compare_devices, find_slow_devices
from perfscope.analyzers.stragglers.lateness import (
    Cause,
    Lateness,
    LateStep,
    find_late_steps,
    find_lateness,
    measure_excesses,
)
from perfscope.analyzers.stragglers.parts import Part, StepParts, find_rows, split_steps
from perfscope.constants import NS_PER_MS, NS_PER_S
from perfscope.errors import MissingInput
from perfscope.report import Cell, Column, Json, Section, in_unit, long_table, percent_of
from perfscope.tables.run import Run
from perfscope.tables.steps import Steps
from perfscope.units import format_ranges
from perfscope.wire.axes import FACTORS

_FEWEST_RANKS = 2
_FEWEST_STEPS = 5
_MOST_LATE_STEPS = 20
CAUSES = {
    Cause.SAVE: "it saved a checkpoint and the others did not",
    Cause.COMPILATION: "torch.compile compiled",
    Cause.GARBAGE: "Python collected garbage",
    Cause.DATA: "it waited for data",
    Cause.CONTENTION: "it had no processor: other threads or processes had it",
    Cause.FAULTS: "it touched new memory",
    Cause.KERNEL: "more time in the operating system",
    Cause.BLOCKED: "its host code slept or waited outside of collectives",
    Cause.WORK: "it had more work",
    Cause.COMPUTE: "its processor took longer, or ran more code",
    Cause.DEVICE: "its GPU is slower",
    Cause.CLOCK: "its GPU has a lower clock",
    Cause.NETWORK: "the exchange took longer on all ranks",
}
_PART_LABELS = {
    Part.COMPUTE: "Compute (ms)",
    Part.EXCHANGE: "Waits for ranks (ms)",
    Part.DATA: "Data (ms)",
    Part.NO_PROCESSOR: "No processor (ms)",
    Part.KERNEL: "Kernel (ms)",
    Part.GARBAGE: "Garbage (ms)",
    Part.BLOCKED: "Blocked (ms)",
    Part.SAVE: "Saves (ms)",
    Part.COMPILATION: "Compilation (ms)",
}
_MOST_RANKS = 16


@dataclass(frozen=True, slots=True, eq=False)
class LateRanks:
    """Who was late.

    Attributes:
        parts: The compared steps; absent where no step can be compared on the host.
        lateness: Each late rank and its cause, the most expensive first.
        devices: The pace of each device; empty where none was timed.
        counts_compute: Whether the ranks' own work was compared.
        has_stages: Whether the ranks are stages of a pipeline.
        collectives_axis: The axis of parallelism that all collectives serve; absent where there are several.
        waits_by_axis: Where there are several, the waits of each rank in collectives whose axis is known.
        late_steps: The steps with the latest ranks.
        unseen: The ranks whose GPUs were compared with nothing, by the reason.
    """

    parts: StepParts | None
    lateness: tuple[Lateness, ...]
    devices: tuple[DevicePace, ...]
    counts_compute: bool
    has_stages: bool
    collectives_axis: str | None = None
    waits_by_axis: tuple[dict[str, int], ...] = ()
    late_steps: tuple[LateStep, ...] = ()
    unseen: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def compared_ns(self) -> int:
        """The time of the compared steps, on the slowest rank of each."""
        return 0 if self.parts is None else int(self.parts.total_ns.max(axis=0).sum())

    def data(self) -> Json:
        """``results.late_ranks``."""
        parts = self.parts
        return {
            "late": [
                {
                    "rank": late.rank,
                    "cause": str(late.cause),
                    "persistent": late.is_persistent,
                    "steps": late.steps,
                    "examples": list(late.examples),
                    "cost_ns": late.cost_ns,
                    "cause_ns": late.cause_ns,
                    "share": late.cost_ns / self.compared_ns if self.compared_ns else None,
                    "excess_ns": {str(part): excess_ns for part, excess_ns in late.excess_ns.items()},
                    "detail": late.detail or None,
                }
                for late in self.lateness
            ],
            "late_steps": [
                {
                    "step": late.step,
                    "rank": late.rank,
                    "later_ns": late.later_ns,
                    "part": str(late.part),
                    "part_ns": late.part_ns,
                }
                for late in self.late_steps
            ],
            "compared_steps": 0 if parts is None else len(parts.step),
            "compared_ns": self.compared_ns,
            "waits_timed": None if parts is None else parts.times_exchange,
            "ranks": []
            if parts is None
            else [
                {
                    "rank": rank,
                    "total_ns": int(parts.total_ns[row].sum()),
                    "parts_ns": {str(part): int(parts.parts_ns[part][row].sum()) for part in Part},
                    "exchange_by_axis_ns": self._by_axis(parts, row),
                    "faults": int(parts.faults[row].sum()),
                }
                for row, rank in enumerate(parts.ranks)
            ],
            "devices": [
                {
                    "rank": pace.rank,
                    "probes": pace.probes,
                    "forward_ns": pace.forward_ns,
                    "backward_ns": pace.backward_ns,
                    "update_ns": pace.update_ns,
                    "relative_forward": pace.relative_forward,
                    "relative_update": pace.relative_update,
                    "sm_clock_mhz": pace.clock_mhz,
                }
                for pace in self.devices
            ],
        }

    def _by_axis(self, parts: StepParts, row: int) -> dict[str, int]:
        """Waits for other ranks by the axis of parallelism; they add up to ``Part.EXCHANGE``."""
        sent_ns = int(parts.transfers_ns[row].sum())
        collectives_ns = int(parts.parts_ns[Part.EXCHANGE][row].sum()) - sent_ns
        sender = "PP" if self.has_stages else "transfers"
        by_axis = self.waits_by_axis[row] if self.waits_by_axis else {}
        collectives_ns -= sum(by_axis.values())
        return {**by_axis, self.collectives_axis or "collectives": collectives_ns, sender: sent_ns}

    def sections(self) -> tuple[Section, ...]:
        """Who was late and why, what the steps of each rank are made of, and how fast the devices are."""
        sections = [self._late_section()]
        if self.parts is not None:
            sections.append(self._parts_section(self.parts))
        if self.devices:
            sections.append(self._devices_section())
        if self.late_steps:
            sections.append(self._late_steps_section())
        return tuple(sections)

    def headline(self) -> str:
        """The answer in one sentence."""
        if not self.lateness:
            return self._nobody()
        worst = self.lateness[0]
        who = "The network" if worst.rank is None else f"Rank {worst.rank}"
        when = "in most steps" if worst.is_persistent else f"in {_count(worst.steps)}"
        if worst.rank is None:
            return f"{who} was slow {when}: {CAUSES[worst.cause]}"
        return f"{who} is late {when}: {CAUSES[worst.cause]}"

    def _nobody(self) -> str:
        """That nobody is late, as far as that was looked at."""
        if self.parts is None:
            return "No GPU is slower than its replicas; what hosts did could not be compared"
        if not self.unseen:
            return "No rank is late"
        ranks = sorted({rank for unseen in self.unseen.values() for rank in unseen})
        return f"No rank's host is late; the GPUs of ranks {format_ranges(ranks)} could not be compared"

    def _late_section(self) -> Section:
        columns = (
            Column("Rank"),
            Column("When"),
            Column("Cost (s)", 3),
            Column("Share of time (%)"),
            Column("Cause"),
            Column("Detail"),
        )
        rows = [
            (
                "all" if late.rank is None else str(late.rank),
                "most steps" if late.is_persistent else f"{_count(late.steps)}, as {format_ranges(late.examples)}",
                late.cost_ns / NS_PER_S,
                percent_of(late.cost_ns, self.compared_ns) if self.compared_ns else None,
                CAUSES[late.cause],
                late.detail or None,
            )
            for late in self.lateness
        ]
        return Section("Late ranks", columns, tuple(rows), tuple(self._notes()))

    def _late_steps_section(self) -> Section:
        columns = (
            Column("Step"),
            Column("Latest rank"),
            Column("Later (ms)", 2),
            Column("Longest in"),
            Column("By (ms)", 2),
        )
        rows = tuple(
            (
                late.step,
                str(late.rank),
                late.later_ns / NS_PER_MS,
                _PART_LABELS[late.part].removesuffix(" (ms)"),
                late.part_ns / NS_PER_MS,
            )
            for late in self.late_steps
        )
        note = "The steps in which a rank was later than the median of the others by most."
        return Section("Steps with the latest ranks", columns, rows, (note,))

    def _notes(self) -> list[str]:
        notes = [f"{self.headline()}."] if not self.lateness else []
        notes += [
            f"The GPUs of ranks {format_ranges(ranks)} were compared with nothing, because {why}: a slow one would not "
            "be seen."
            for why, ranks in self.unseen.items()
            if ranks
        ]
        if any(pace.is_compared and pace.relative_forward is None for pace in self.devices):
            notes.append("Of GPUs without a relative forward pass the optimizer's update alone was compared.")
        if self.parts is not None:
            notes.append(
                f"Compared are {len(self.parts.step)} steps that all {len(self.parts.ranks)} ranks have, without "
                "profiler windows and validations. The cost is the time by which a rank was later than the median of "
                "the others."
            )
        if self.parts is not None and not self.counts_compute:
            why = (
                "The ranks are stages of a pipeline, whose work differs"
                if self.has_stages
                else "The devices wait for each other, not the hosts"
            )
            notes.append(
                f"{why}: a rank is late here by what cannot be a wait for another rank, and the cost is at most what "
                "is shown."
            )
        if self.devices:
            notes.append("The cost of a slow device is estimated: the rank's device time beyond that of the others.")
        return notes

    def _parts_section(self, parts: StepParts) -> Section:
        present = [part for part in _PART_LABELS if parts.parts_ns[part].any() or part is Part.COMPUTE]
        columns = (Column("Rank"), Column("Step (ms)", 2), *(Column(_PART_LABELS[part], 2) for part in present))
        count = len(parts.step)
        rows: list[tuple[Cell, ...]] = [
            (
                str(rank),
                float(parts.total_ns[row].sum()) / count / NS_PER_MS,
                *(float(parts.parts_ns[part][row].sum()) / count / NS_PER_MS for part in present),
            )
            for row, rank in enumerate(parts.ranks)
        ]
        named = {str(late.rank) for late in self.lateness}
        rows.sort(key=lambda row: row[0] not in named)
        notes = ["Means of the compared steps on the host; the parts add up to the step."]
        waits = [self._by_axis(parts, row) for row in range(len(parts.ranks))]
        means = {
            axis: sum(wait.get(axis, 0) for wait in waits) / len(waits) / count / NS_PER_MS
            for axis in dict.fromkeys(axis for wait in waits for axis in wait)
        }
        means = {axis: mean for axis, mean in means.items() if mean}
        if len(means) > 1:
            listed = ", ".join(f"{axis} {mean:.2f} ms" for axis, mean in means.items())
            notes.append(f"Waits for ranks by axis of parallelism, a mean of all ranks: {listed}.")
        return long_table("Steps on the host, by rank", columns, rows, tuple(notes), most=_MOST_RANKS)

    def _devices_section(self) -> Section:
        columns = (
            Column("Rank"),
            Column("Timed steps"),
            Column("Forward (ms)", 2),
            Column("Backward, exchange (ms)", 2),
            Column("Optimizer (ms)", 2),
            Column("Relative forward", 3),
            Column("Relative optimizer", 3),
            Column("SM clock (MHz)"),
        )
        rows = [
            (
                str(pace.rank),
                pace.probes,
                in_unit(pace.forward_ns, NS_PER_MS),
                pace.backward_ns / NS_PER_MS,
                pace.update_ns / NS_PER_MS,
                pace.relative_forward,
                pace.relative_update,
                pace.clock_mhz,
            )
            for pace in sorted(self.devices, key=lambda pace: -pace.ratio)
        ]
        note = (
            "Medians of the steps that were timed by events on the device. Relative is the time without waits for the "
            "host over the median of the ranks that hold the same part of the model."
        )
        return long_table("Pace of the devices", columns, rows, (note,), most=_MOST_RANKS)


def _count(steps: int) -> str:
    return f"{steps} step{'' if steps == 1 else 's'}"


def analyze(run: Run) -> LateRanks:
    """Compare the steps of all ranks.

    Raises:
        MissingInput: There are not two ranks with the same steps.
    """
    tables = last_attempts(run.steps)
    if len(tables) < _FEWEST_RANKS:
        raise MissingInput("needs two ranks or more that completed steps")
    if all(table.host is None for table in tables):
        raise MissingInput("this run did not record what its hosts did in each step")
    parts = split_steps(tables)
    if parts is not None and len(parts.step) < _FEWEST_STEPS:
        parts = None
    has_stages = _has_stages(run)
    devices = compare_devices(tables, run, has_stages=has_stages)
    if parts is None and not devices.paces:
        raise MissingInput(f"the ranks have fewer than {_FEWEST_STEPS} steps in common that can be compared")
    counts_compute = parts is not None and parts.times_exchange and not has_stages
    lateness: list[Lateness] = []
    late_steps: tuple[LateStep, ...] = ()
    if parts is not None:
        excesses = measure_excesses(parts, counts_compute=counts_compute)
        lateness = find_lateness(parts, excesses)
        late_steps = find_late_steps(parts, excesses, _MOST_LATE_STEPS)
    slow = find_slow_devices(devices.paces, tables)
    ordered = sorted([*lateness, *slow], key=lambda late: -late.cost_ns)
    axis = _collectives_axis(run)
    waits = split_waits(parts, tables, axes_of_groups(run)) if parts is not None and axis is None else ()
    return LateRanks(
        parts, tuple(ordered), devices.paces, counts_compute, has_stages, axis, waits, late_steps, devices.unseen
    )


def _collectives_axis(run: Run) -> str | None:
    """The axis of parallelism that all collectives serve; None where there are several, or none is known."""
    axes = {axis for rank in run.ranks for axis in rank.parallel if axis != "pp"}
    used = [axis for axis in axes if len({rank.parallel.get(axis) for rank in run.ranks}) > 1]
    return used[0].upper() if len(used) == 1 else None


def _has_stages(run: Run) -> bool:
    """Whether ranks are stages of a pipeline."""
    return bool(run.micro_batches) or len({rank.parallel.get("pp") for rank in run.ranks}) > 1


def axes_of_groups(run: Run) -> dict[int, tuple[str, ...]]:
    """By rank, the axis of each of its process groups, as ``TP``; empty for a group that serves none or several."""
    lines = _find_lines(run)
    return {
        rank.rank: tuple(
            role_of(group.description, "", group.ranks, lines.get(min(group.ranks, default=-1), {}))
            for group in rank.groups
        )
        for rank in run.ranks
        if rank.groups
    }


def _find_lines(run: Run) -> dict[int, dict[str, Sequence[int]]]:
    """By rank and axis, the ranks that share all other axes with it; experts stand over those of data parallelism."""
    coordinates = {rank.rank: rank.parallel for rank in run.ranks}
    if not all(coordinates.values()):
        return {}  # a rank that states no coordinates may differ from the others on any axis
    used = [axis for axis in FACTORS if len({own.get(axis, 0) for own in coordinates.values()}) > 1]
    lines: dict[int, dict[str, Sequence[int]]] = {rank: {} for rank in coordinates}
    for axis in used:
        crossing = [crossed for crossed in used if crossed != axis]
        shared: dict[tuple[int, ...], list[int]] = {}
        for rank, own in coordinates.items():
            shared.setdefault(tuple(own.get(crossed, 0) for crossed in crossing), []).append(rank)
        for ranks in shared.values():
            for rank in ranks:
                lines[rank][axis] = ranks
    for rank, own in coordinates.items():
        if "ep" in own and "dp" in used:
            lines[rank]["ep"] = lines[rank]["dp"]
    return lines


def split_waits(
    parts: StepParts, tables: Sequence[Steps], axes_by_rank: Mapping[int, tuple[str, ...]]
) -> tuple[dict[str, int], ...]:
    """For each rank, its waits in collectives by axis, over the compared steps; what no axis is known of is left out.

    Args:
        parts: The steps of the ranks.
        tables: The last process of each of these ranks, in their order.
        axes_by_rank: The axis of each group of a rank.
    """
    waits = []
    for row, table in enumerate(tables):
        remaining = parts.parts_ns[Part.EXCHANGE][row] - parts.transfers_ns[row]
        by_axis: dict[str, int] = {}
        columns = () if table.host is None else table.host.groups_ns
        for axis, column in zip(axes_by_rank.get(table.rank, ()), columns, strict=False):
            if axis:
                taken = np.clip(np.ma.filled(column, 0)[find_rows(table.step, parts.step)], 0, remaining)
                remaining = remaining - taken
                by_axis[axis] = by_axis.get(axis, 0) + int(taken.sum())
        waits.append(by_axis)
    return tuple(waits)
