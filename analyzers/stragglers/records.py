"""Which rank is late, in which steps, what that costs, and why: from the records of every step, without a trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated

from msgspec.structs import replace

from perfscope import report
from perfscope.analyzers.stragglers.devices import DevicePace, compare_devices, find_slow_devices
from perfscope.analyzers.stragglers.lateness import (
    ComparedSteps,
    Lateness,
    find_lateness,
    measure_excesses,
    split_steps,
)
from perfscope.constants import NS_PER_MS, NS_PER_S
from perfscope.errors import MissingInput
from perfscope.measures.parts import HostPart
from perfscope.measures.step_selection import last_attempts
from perfscope.report import MOST_ROWS, Cell, Section
from perfscope.result import MS_OF_NS, PERCENT, Column, Doc, Figures, Result, Table, figure
from perfscope.tables.run import Run
from perfscope.tables.steps import FEWEST_STEPS
from perfscope.units import format_count, format_ranges
from perfscope.wire.places import Place


def _when(late: Lateness) -> str:
    steps = f"{format_count(late.steps, 'step')}, as {format_ranges(late.examples)}"
    return "most steps" if late.persistent else steps


class HostSteps(Figures, frozen=True):
    """The steps of one rank on its host."""

    rank: Annotated[int, Doc("The rank.")]
    total_ns: Annotated[int, Doc("The time of the compared steps.")]
    parts_ns: Annotated[dict[HostPart, int], Doc("The same by part; the parts add up to it.")]
    faults: Annotated[int, Doc("Page faults in them.")]


class LateRanks(Result, frozen=True):
    """``results.late_ranks``: which ranks are late, by what their hosts did in each step.

    ``unseen`` are the ranks whose GPUs were compared with nothing, by the reason.
    """

    late: Annotated[tuple[Lateness, ...], Doc("Each late rank and cause, the largest cost first.")]
    ranks: Annotated[tuple[HostSteps, ...], Doc("Each rank.")]
    devices: Annotated[tuple[DevicePace, ...], Doc("How fast the devices of the ranks are.")]
    parts: ComparedSteps | None
    counts_compute: bool
    has_stages: bool
    unseen: Mapping[str, tuple[int, ...]] = {}

    TABLES = (
        Table(
            "Late ranks",
            "late",
            (
                Column("Rank", lambda late: "all" if late.rank is None else str(late.rank)),
                Column("When", _when),
                Column("Cost (s)", "cost_ns", lambda ns: ns / NS_PER_S, 3),
                Column("Share of time (%)", "share", PERCENT),
                Column("Cause", lambda late: late.cause.label),
                Column("Detail", "detail"),
            ),
        ),
        Table(
            "Pace of the devices",
            "devices",
            (
                Column("Rank", "rank", str),
                Column("Timed steps", "probes"),
                Column("Forward (ms)", "forward_ns", MS_OF_NS, 2),
                Column("Backward, exchange (ms)", "backward_ns", MS_OF_NS, 2),
                Column("Optimizer (ms)", "update_ns", MS_OF_NS, 2),
                Column("Relative forward", "relative_forward", None, 3),
                Column("Relative optimizer", "relative_update", None, 3),
                Column("SM clock (MHz)", "sm_clock_mhz"),
            ),
        ),
    )

    @figure
    def compared_steps(self) -> int:
        """How many steps are compared."""
        return 0 if self.parts is None else len(self.parts.step)

    @figure
    def compared_ns(self) -> int:
        """The time of these steps, on the slowest rank of each."""
        return 0 if self.parts is None else int(self.parts.total_ns.max(axis=0).sum())

    @figure
    def waits_timed(self) -> bool | None:
        """Whether the waits for other ranks were timed; None where nothing is compared."""
        return None if self.parts is None else self.parts.times_exchange

    def sections(self) -> tuple[Section, ...]:
        """Who was late and why, what the steps of each rank are made of, and how fast the devices are."""
        late, devices = self.TABLES
        sections = [late.section(self.late, self._notes())]
        if self.parts is not None:
            sections.append(self._parts_section(self.parts))
        if self.devices:
            note = (
                "Medians of the steps that were timed by events on the device. Relative is the time without waits for "
                "the host over the median of the ranks that hold the same part of the model."
            )
            slowest_first = sorted(self.devices, key=lambda pace: -pace.ratio)
            sections.append(devices.section(slowest_first, (note,), most=MOST_ROWS))
        return tuple(sections)

    def in_a_sentence(self) -> str:
        """The answer in one sentence."""
        if not self.late:
            return self._nobody()
        worst = self.late[0]
        who = "The network was slow" if worst.rank is None else f"Rank {worst.rank} is late"
        when = "most steps" if worst.persistent else format_count(worst.steps, "step")
        return f"{who} in {when}: {worst.cause.label}"

    def _nobody(self) -> str:
        if self.parts is None:
            return "No GPU is slower than its replicas; what hosts did could not be compared"
        if not self.unseen:
            return "No rank is late"
        ranks = sorted({rank for unseen in self.unseen.values() for rank in unseen})
        return f"No rank's host is late; the GPUs of ranks {format_ranges(ranks)} could not be compared"

    def _notes(self) -> list[str]:
        notes = [f"{self.in_a_sentence()}."] if not self.late else []
        notes += [
            f"The GPUs of ranks {format_ranges(ranks)} were compared with nothing, because {why}: a slow one would not "
            "be seen."
            for why, ranks in self.unseen.items()
            if ranks
        ]
        if any(pace.is_compared and pace.relative_forward is None for pace in self.devices):
            notes.append("On GPUs without a relative forward pass only the optimizer's update was compared.")
        if self.parts is not None:
            notes.append(
                f"Compared are {len(self.parts.step)} steps that all {len(self.parts.ranks)} ranks have, without "
                "profiler windows and validations. The cost is the time by which a rank was later than the median of "
                "the others."
            )
        if self.parts is not None and not self.counts_compute:
            stages = "The ranks are stages of a pipeline, whose work differs"
            notes.append(
                f"{stages if self.has_stages else 'The devices wait for each other, not the hosts'}: only delays count "
                "that cannot be waits for another rank, and the costs are upper limits."
            )
        if self.devices:
            notes.append("The cost of a slow device is estimated: the rank's device time less the others'.")
        return notes

    def _parts_section(self, parts: ComparedSteps) -> Section:
        present = [part for part in HostPart if parts.parts_ns[part].any() or part is HostPart.COMPUTE]
        headings = ("Step (ms)", *(f"{part.label} (ms)" for part in present))
        columns = (report.Column("Rank"), *(report.Column(heading, 2) for heading in headings))
        count = len(parts.step)
        rows: list[tuple[Cell, ...]] = [
            (
                str(rank.rank),
                rank.total_ns / count / NS_PER_MS,
                *(rank.parts_ns[part] / count / NS_PER_MS for part in present),
            )
            for rank in self.ranks
        ]
        named = {str(late.rank) for late in self.late}
        rows.sort(key=lambda row: row[0] not in named)
        note = "Means of the compared steps on the host; the parts add up to the step."
        return report.long_table("Steps on the host, by rank", columns, rows, (note,), most=MOST_ROWS)


def analyze(run: Run) -> LateRanks:
    """Compare the steps of all ranks; MissingInput where there are not two ranks with the same steps."""
    tables = last_attempts(run.steps)
    if len(tables) <= 1:
        raise MissingInput("needs two ranks or more that completed steps")
    if all(table.host is None for table in tables):
        raise MissingInput("this run did not record what its hosts did in each step")
    parts = split_steps(tables)
    if parts is not None and len(parts.step) < FEWEST_STEPS:
        parts = None
    has_stages = bool(run.micro_batches) or len({rank.parallel.get("pp") for rank in run.ranks}) > 1
    paces, unseen = compare_devices(tables, run, has_stages=has_stages)
    if parts is None and not paces:
        raise MissingInput(f"the ranks have fewer than {FEWEST_STEPS} steps in common that can be compared")
    counts_compute = parts is not None and parts.times_exchange and not has_stages
    late = [] if parts is None else find_lateness(parts, measure_excesses(parts, counts_compute=counts_compute))
    late += find_slow_devices(paces, tables)
    compared_ns = 0 if parts is None else int(parts.total_ns.max(axis=0).sum())
    looks = {rank: _share_looks(seen.places) for rank, seen in run.places.items()}
    shares = [entry.cost_ns / compared_ns if compared_ns else None for entry in late]
    late = [
        replace(entry, share=share, line=_find_line(looks, entry.rank, share or 0.0))
        for entry, share in zip(late, shares, strict=True)
    ]
    return LateRanks(
        late=tuple(sorted(late, key=lambda late: -late.cost_ns)),
        ranks=() if parts is None else _host_steps(parts),
        devices=paces,
        parts=parts,
        counts_compute=counts_compute,
        has_stages=has_stages,
        unseen=unseen,
    )


def _share_looks(places: Sequence[Place]) -> dict[str, float]:
    looks = sum(place.usual + place.long for place in places)
    seen: Counter[str] = Counter()
    for place in places:
        if place.function:
            seen[place.name] += place.usual + place.long
    return {name: count / looks for name, count in seen.items()}


def _find_line(looks: Mapping[int, Mapping[str, float]], rank: int | None, share: float) -> str | None:
    """The line where the training thread of a rank is more often than those of others, for most of its lateness."""
    if rank is None or rank not in looks or len(looks) == 1:
        return None
    others = [seen for other, seen in looks.items() if other != rank]
    over = {
        name: mine - sum(seen.get(name, 0.0) for seen in others) / len(others) for name, mine in looks[rank].items()
    }
    line = max(over, key=lambda name: over[name], default=None)
    return line if line is not None and 2 * over[line] > share else None


def _host_steps(parts: ComparedSteps) -> tuple[HostSteps, ...]:
    return tuple(
        HostSteps(
            rank,
            int(parts.total_ns[row].sum()),
            {part: int(parts.parts_ns[part][row].sum()) for part in HostPart},
            int(parts.faults[row].sum()),
        )
        for row, rank in enumerate(parts.ranks)
    )
