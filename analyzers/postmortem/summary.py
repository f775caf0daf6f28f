"""The answer of a post-mortem: the diagnosis, and what each rank was doing."""

from __future__ import annotations

from dataclasses import dataclass

from perfscope.analyzers.postmortem.diagnosis import Diagnosis, Reason
from perfscope.analyzers.postmortem.matching import signature_of
from perfscope.analyzers.postmortem.places import CodePlace, locate
from perfscope.constants import NS_PER_S
from perfscope.report import Cell, Column, Json, Report, Row, Section, escape_control_characters
from perfscope.result import to_json, to_object
from perfscope.tables.postmortem import CollectiveCall, Death, PostMortem, RankState
from perfscope.units import format_ranges

SCHEMA = "perfscope/postmortem/1"
_LAST_CALLS = 4

#: What a reader can do next.
_ADVICE = {
    Reason.SKIPPED: "let every rank of a group call every collective: look for a condition that differs between ranks. "
    "A rank that calls it later, where calls block, leaves the same traces",
    Reason.SIZE: "let all ranks pass tensors of the same size: pad them, or use the collectives for uneven sizes",
    Reason.DTYPE: "let all ranks pass tensors of the same type",
    Reason.OPERATION: "let all ranks call the same operation in the same place",
    Reason.ORDER: "let all ranks call collectives in the same order: not in that of a set, of files or of requests",
    Reason.GROUP: "let all ranks pass the same group",
    Reason.CRASH: "read the line above, and the rank's own output",
    Reason.MEMORY: "`perfscope plan` estimates what fits; the steps before the end are in `perfscope analyze`",
    Reason.KERNEL: "run that rank with CUDA_LAUNCH_BLOCKING=1 to find the kernel; with Xid 48, 63, 64, 79, 94 or 95 "
    "have the GPU checked",
    Reason.HOST: "the line above does not return: a file system, a lock, a download, a loop",
    Reason.LOADING: "the data loader does not return: look at its workers, its storage and its dataset's code",
    Reason.SAVING: "the checkpoint is not written: look at the storage",
    Reason.DEVICE: "a kernel of that rank does not end: look at what it launched before that collective",
    Reason.ABSENT: "look at the launcher's output for these ranks, and whether their hosts can be reached",
    Reason.LEFT: "let all ranks train for the same number of steps: look at uneven data",
}


@dataclass(frozen=True, slots=True)
class Summary:
    """A diagnosis and its evidence."""

    evidence: PostMortem
    diagnosis: Diagnosis

    def report(self) -> Report:
        """The answer as data and as sections."""
        title = f"Post-mortem of {self.evidence.source}"
        sections = (self._diagnosis_section(), self._ranks_section(), self._calls_section())
        warnings = tuple(escape_control_characters(text) for text in self.evidence.damage)
        return Report(title, self._data(), tuple(section for section in sections if section is not None), warnings)

    def _data(self) -> dict[str, Json]:
        diagnosis, evidence = self.diagnosis, self.evidence
        return {
            "schema": SCHEMA,
            "source": evidence.source,
            "exit_status": evidence.exit_status,
            "world_size": evidence.world_size,
            **to_object(diagnosis),
            "advice": _ADVICE.get(diagnosis.reason),
            "kernel_errors": to_json(evidence.kernel_errors),
            "states": [_rank_data(state) for _, state in sorted(evidence.ranks.items())],
            "damage": list(evidence.damage),
        }

    def _diagnosis_section(self) -> Section:
        diagnosis = self.diagnosis
        rows: list[Row] = [
            ("Reason", str(diagnosis.reason)),
            ("Ranks to look at", format_ranges(diagnosis.ranks) if diagnosis.ranks else None),
            ("What happened", diagnosis.text),
            ("Line of code", None if diagnosis.line is None else str(diagnosis.line)),
        ]
        if diagnosis.group is not None:
            rows.append(("Collective", f"number {diagnosis.sequence} of group {diagnosis.group}"))
        if diagnosis.expected is not None:
            rows += [("Expected", diagnosis.expected), ("Called", diagnosis.actual)]
        rows.append(("Ranks that only wait", format_ranges(diagnosis.waiting) if diagnosis.waiting else None))
        rows.append(("Command", self.evidence.exit_status))
        advice = _ADVICE.get(diagnosis.reason)
        notes = (f"{advice[0].upper()}{advice[1:]}.",) if advice else ()
        return Section("Diagnosis", (Column(""), Column("")), tuple(rows), notes)

    def _ranks_section(self) -> Section:
        columns = tuple(map(Column, ("Rank", "Host", "Steps", "Idle (s)", "Last collective", "In", "End")))
        rows = tuple(self._rank_row(state) for _, state in sorted(self.evidence.ranks.items()))
        missing = [rank for rank in range(self.evidence.world_size) if rank not in self.evidence.ranks]
        named = f"rank{'s' if len(missing) > 1 else ''} {format_ranges(missing)}"
        notes = (f"Nothing is known of {named}.",) if missing else ()
        return Section("Ranks", columns, rows, notes)

    def _rank_row(self, state: RankState) -> Row:
        last = None if state.dump is None or not state.dump.calls else state.dump.calls[-1]
        spot = _place_of(state)
        idle_s: Cell = None if state.stalled_ns is None else state.stalled_ns / NS_PER_S
        return (
            state.rank,
            state.host or None,
            state.step,
            idle_s,
            None if last is None else f"{last.sequence} {signature_of(last)}",
            None if spot is None else str(spot),
            _describe_end(state.death, state),
        )

    def _calls_section(self) -> Section | None:
        """The last collectives of the ranks to look at, beside those of one that only waits."""
        chosen = [*self.diagnosis.ranks[:2], *self.diagnosis.waiting[:1]]
        rows = tuple(
            (rank, call.group, call.sequence, call.operation, str(list(map(list, call.input_sizes))), _state(call))
            for rank in sorted(set(chosen))
            for call in self._last_calls(rank)
        )
        columns = tuple(map(Column, ("Rank", "Group", "Number", "Operation", "Input shapes", "State")))
        return Section("Last collectives", columns, rows) if rows else None

    def _last_calls(self, rank: int) -> tuple[CollectiveCall, ...]:
        state = self.evidence.ranks.get(rank)
        return () if state is None or state.dump is None else state.dump.calls[-_LAST_CALLS:]


def _state(call: CollectiveCall) -> str:
    if call.is_completed:
        return "over"
    return {True: "started on the device", False: "not started on the device", None: "called"}[call.is_started]


def _place_of(state: RankState) -> CodePlace | None:
    return locate(state.stack.frames) if state.stack is not None else None


def _describe_end(death: Death | None, state: RankState) -> str | None:
    if state.failure is not None:
        return state.failure.error
    if death is None:
        return "ended by itself" if state.has_ended else None
    if death.signal is not None:
        return f"signal {death.signal}"
    return None if death.exit_code is None else f"exit code {death.exit_code}"


def _rank_data(state: RankState) -> dict[str, Json]:
    spot, death, failure = _place_of(state), state.death, state.failure
    return {
        "rank": state.rank,
        "host": state.host or None,
        "steps": state.step,
        "stalled_ns": state.stalled_ns,
        "resumed": state.has_resumed,
        "activity": None if spot is None else str(spot.activity),
        "line": to_json(None if spot is None else spot.line),
        "error": None if failure is None else failure.error,
        "message": None if failure is None else failure.message,
        "exit_code": None if death is None else death.exit_code,
        "signal": None if death is None else death.signal,
        "ended_wall_ns": None if death is None else death.wall_ns,
        "collectives": None if state.dump is None else len(state.dump.calls),
    }
