"""From what ranks left behind to the rank and the reason.

The order of the questions: did a rank fail by itself, before anything stalled? Did ranks call different collectives as
the same one? Did a rank call something else than ever before in that place? Has a rank not come to a collective that
others wait in, and what does it do instead? Does a device not begin what all ranks have called?
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from perfscope.analyzers.postmortem.matching import (
    LAST_CALLS,
    History,
    MatchedCollective,
    Matching,
    Shift,
    Token,
    find_first_open,
    match_calls,
    signature_of,
)
from perfscope.analyzers.postmortem.places import (
    Activity,
    CodePlace,
    Reason,
    describe_unknown,
    find_first_failure,
    is_same_place,
    locate,
    own_line,
)
from perfscope.constants import NS_PER_S
from perfscope.report import Cell, Column, Json, Report, Row, Section, escape_control_characters
from perfscope.result import to_json, to_object
from perfscope.tables.postmortem import CollectiveCall, PostMortem, RankState
from perfscope.units import format_ranges
from perfscope.wire.incidents import CodeFrame


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why a training stalled or failed, in one sentence; ``ranks`` are those to look at, ``expected`` is of others."""

    reason: Reason
    ranks: tuple[int, ...]
    text: str
    line: CodeFrame | None = None
    group: str | None = None
    sequence: int | None = None
    expected: str | None = None
    actual: str | None = None
    waiting: tuple[int, ...] = field(default=())


_OF_ACTIVITIES = {
    Activity.LOADING: Reason.LOADING,
    Activity.SAVING: Reason.SAVING,
    Activity.DEVICE: Reason.DEVICE,
}


def diagnose(evidence: PostMortem) -> Diagnosis:
    """Find the ranks to look at, and why."""
    matching = match_calls(evidence.ranks, evidence.world_size)
    case = _Case(evidence, matching)
    answer = (
        case.find_failure()
        or case.find_difference()
        or case.find_deviation()
        or case.find_device()
        or case.find_absent()
        or case.find_idle()
        or case.find_never_started()
        or case.find_lost_connection()
        or case.find_apart()
    )
    if answer is None:
        states = evidence.ranks.values()
        if not any(state.host for state in states):  # dumps alone, which nobody writes at an end without a reason
            has_calls = all(state.dump is not None and state.dump.calls for state in states)
            has_ended = has_calls and not find_first_open(evidence.ranks) and not evidence.damage
        else:
            has_ended = all(_has_ended_well(state) for state in states)
        text = "the training ended by itself, and no rank stalled" if has_ended else describe_unknown(evidence)
        return Diagnosis(Reason.NOTHING if has_ended else Reason.UNKNOWN, (), text)
    return answer


def _has_ended_well(state: RankState) -> bool:
    is_clean = state.death is None or state.death.exit_code == 0
    return is_clean and state.failure is None and (state.noticed_ns is None or state.has_resumed)


class _Case:
    def __init__(self, evidence: PostMortem, matching: Matching) -> None:
        self.evidence = evidence
        self.matching = matching
        self.ranks = evidence.ranks
        self.places: dict[int, CodePlace | None] = {
            rank: locate(state.stack.frames, state.source_text) if state.stack else None
            for rank, state in self.ranks.items()
        }
        self.histories = {rank: History(state.dump.calls) for rank, state in self.ranks.items() if state.dump}

    def find_failure(self) -> Diagnosis | None:
        """A rank failed by itself."""
        if (first := find_first_failure(self.evidence)) is None:
            return None
        state = self.ranks[first.rank]
        frames = state.failure.frames if state.failure else state.stack.frames if state.stack else ()
        text = f"rank {first.rank} failed first: {first.text}"
        return self._answer(first.kind, (first.rank,), text, line=own_line(frames))

    def find_lost_connection(self) -> Diagnosis | None:
        """A communication library gave up, and no rank left its collectives: they disagree, or one was lost."""
        if (first := find_first_failure(self.evidence, with_libraries=True)) is None:
            return None
        spot = self.places.get(first.rank)
        where = "" if spot is None else f" in {spot}"
        text = f"the communication library of rank {first.rank} gave up first{where}: {first.text}"
        return self.find_apart() or self._answer(Reason.UNKNOWN, (first.rank,), text, line=spot.line if spot else None)

    def find_apart(self) -> Diagnosis | None:
        """All ranks wait in collectives, not all in one; a rank that died of it stood where its traceback says."""
        sides: dict[str, list[int]] = {}
        spots: dict[int, CodePlace] = {}
        for rank, state in sorted(self.ranks.items()):
            spot = self.places[rank] or locate(state.failure.frames if state.failure else ())
            if spot is None or not spot.collective:
                return None
            spots[rank] = spot
            sides.setdefault(spot.collective, []).append(rank)
        if len(sides) < 2 or len(spots) < self.evidence.world_size or not self._has_stopped():  # noqa: PLR2004
            return None
        usual, *rest = sorted(sides.values(), key=lambda side: -len(side))
        culprits = tuple(rank for side in rest for rank in side) if len(usual) > len(rest[0]) else tuple(spots)
        stand = "; ".join(f"rank {format_ranges(side)} in {name}, {spots[side[0]]}" for name, side in sides.items())
        text = f"ranks stand in different collectives: {stand}"
        return self._answer(Reason.OPERATION, culprits, text, line=spots[culprits[0]].line)

    def find_difference(self) -> Diagnosis | None:
        """Ranks called different things as the same collective."""
        if not self.matching.differences:
            return None
        difference = self.matching.differences[0]
        sets = list(difference.by_signature().items())
        culprits = self._pick_culprits(difference, [ranks for _, ranks in sets])
        if not culprits:
            sides = "; ".join(f"ranks {format_ranges(ranks)} called {signature}" for signature, ranks in sets)
            text = f"collective {difference.sequence} of group {difference.group} differs: {sides}"
            return self._answer(Reason.UNKNOWN, tuple(sorted(difference.calls)), text, event=difference)
        right = next(call for rank, call in difference.calls.items() if rank not in culprits)
        usual, wrong = Token(right.group, signature_of(right)), difference.calls[culprits[0]]
        reason = self._compare(culprits[0], wrong, {usual})
        text = (
            f"{_ranks(culprits)} called {signature_of(wrong)} as collective {difference.sequence} of group "
            f"{difference.group}, where the others called {usual.signature}"
        )
        line = own_line(wrong.frames)
        return self._answer(reason, culprits, text, line=line, event=difference, wrong=wrong, usual=usual)

    def _pick_culprits(self, difference: MatchedCollective, sets: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """The smaller set; of two of the same size the one that did something else before in the same place."""
        if len(sets) > 1 and len(sets[0]) > len(sets[1]):
            return tuple(rank for ranks in sets[1:] for rank in ranks)
        deviating = []
        for rank, call in difference.calls.items():
            history = self.histories[rank]
            index = history.index_of(call)
            expected = history.expected_at(index) if index else set()
            if expected and history.tokens[index or 0] not in expected:
                deviating.append(rank)
        return tuple(deviating) if 0 < len(deviating) < len(difference.calls) else ()

    def find_deviation(self) -> Diagnosis | None:
        """Some ranks called something else than ever before in that place, and others did not."""
        deviations = {rank: index for rank, history in self.histories.items() if (index := history.find_deviation())}
        if not deviations or len(deviations) > len(self.ranks) / 2 or not self._has_stopped():
            return None
        culprits = tuple(sorted(deviations))
        history, index = self.histories[culprits[0]], deviations[culprits[0]]
        wrong, expected = history.calls[index], history.expected_at(index)
        reason = self._compare(culprits[0], wrong, expected)
        usual = min(expected)
        text = f"{_ranks(culprits)} called {history.tokens[index]}, where it had always called {usual} before"
        return self._answer(reason, culprits, text, line=own_line(wrong.frames), wrong=wrong, usual=usual)

    def _compare(self, rank: int, wrong: CollectiveCall, expected: set[Token]) -> Reason:
        actual = Token(wrong.group, signature_of(wrong))
        history = self.histories[rank]
        index = history.index_of(wrong) or 0
        shift = history.explain_shift(index)
        if shift is not None:
            return Reason.ORDER if shift is Shift.EXCHANGED else Reason.SKIPPED
        later = history.tokens[index + 1 : index + 1 + LAST_CALLS]
        is_usual = actual in history.tokens[:index]
        for token in expected:
            if token in later and is_usual:
                return Reason.ORDER
        for token in expected:
            same_operation = token.signature.operation == actual.signature.operation
            if same_operation and token.group == actual.group and not is_usual:
                same_size = token.signature.elements == actual.signature.elements
                return Reason.DTYPE if same_size else Reason.SIZE
            if token.signature == actual.signature and token.group != actual.group:
                return Reason.GROUP
        if not is_usual:
            return Reason.OPERATION
        return Reason.SKIPPED if history.has_usual_line(index) else Reason.ORDER

    def find_device(self) -> Diagnosis | None:
        """All ranks called a collective, and some devices have not begun it."""
        for event in self.matching.unfinished:
            if event.not_started:
                call = event.calls[event.not_started[0]]
                spot = self.places.get(event.not_started[0])
                text = (
                    f"all ranks called {signature_of(call)} as collective {event.sequence} of group {event.group}, and "
                    f"the device of {_ranks(event.not_started)} has not begun it: an earlier kernel there does not end"
                )
                line = spot.line if spot is not None else own_line(call.frames)
                return self._answer(Reason.DEVICE, event.not_started, text, line=line, event=event)
        return self._find_idle_device()

    def _find_idle_device(self) -> Diagnosis | None:
        """Some devices have not begun the first call that is not over, and those of others wait in theirs."""
        first = find_first_open(self.ranks)
        idle = tuple(rank for rank, call in first.items() if call.is_started is False and not self._busy((rank,)))
        if not idle or not any(call.is_started for call in first.values()):
            return None
        call, spot = first[idle[0]], self.places.get(idle[0])
        text = (
            f"the device of {_ranks(idle)} has not begun {call.operation}, and the others wait in what they have "
            "begun: an earlier kernel there does not end"
        )
        line = spot.line if spot is not None else own_line(call.frames)
        return self._answer(Reason.DEVICE, idle, text, line=line)

    def find_absent(self) -> Diagnosis | None:
        """Ranks have not come to a collective that others wait in."""
        if not self._has_stopped():
            return None
        busy = [absence for absence in self.matching.absences if self._busy(absence.missing)]
        if busy:
            absence = busy[0]
            call = next(iter(absence.calls.values()))
            what = f"has not come to {signature_of(call)}, collective {absence.sequence} of group {absence.group}"
            return self._explain_busy(self._busy(absence.missing), what, absence)
        for absence in self.matching.absences:
            ranks = tuple(rank for rank in absence.missing if self.places.get(rank) is not None)
            if ranks and len(ranks) < self.evidence.world_size:
                return self._explain_elsewhere(absence, ranks)
        return None

    def _explain_elsewhere(self, absence: MatchedCollective, ranks: tuple[int, ...]) -> Diagnosis:
        spot, call = self.places[ranks[0]], next(iter(absence.calls.values()))
        what = f"{signature_of(call)}, collective {absence.sequence} of group {absence.group}, in which the others wait"
        reason, text = Reason.SKIPPED, f"{_ranks(ranks)} went on to {spot} without {what}"
        if spot is not None and spot.activity is Activity.DEVICE:
            reason = Reason.DEVICE
        elif self._stands_in(ranks[0], call):
            reason = Reason.GROUP
            text = f"{_ranks(ranks)} at {spot and spot.line}: the call there waits in another group than that of {what}"
        return self._answer(reason, ranks, text, line=spot.line if spot else None, event=absence)

    def _stands_in(self, rank: int, call: CollectiveCall) -> bool:
        """Whether a rank stands where it has always made such a call, which its recorder does not hold this time.

        A call in a group that NCCL has not used yet waits for the other ranks of that group before it is recorded.
        """
        stack, history = self.ranks[rank].stack, self.histories.get(rank)
        if stack is None or history is None:
            return False
        token = Token(call.group, signature_of(call))
        return any(
            token == usual and is_same_place(stack.frames, earlier.frames)
            for usual, earlier in zip(history.tokens, history.calls, strict=True)
        )

    def _busy(self, ranks: Sequence[int]) -> tuple[int, ...]:
        """Those of some ranks that wait for nobody: they run, or their process has ended."""
        busy = []
        for rank in self.ranks.keys() & set(ranks):
            state, spot = self.ranks[rank], self.places.get(rank)
            if not spot.waits if spot is not None else state.has_ended or state.death is not None:
                busy.append(rank)
        return tuple(sorted(busy, key=ranks.index))

    def _explain_busy(self, ranks: tuple[int, ...], what: str, event: MatchedCollective | None) -> Diagnosis:
        spot = self.places.get(ranks[0])
        if spot is None:
            text = f"{_ranks(ranks)} {what}: its process has ended"
            return self._answer(Reason.LEFT, ranks, text, event=event)
        reason = _OF_ACTIVITIES.get(spot.activity, Reason.HOST)
        return self._answer(reason, ranks, f"{_ranks(ranks)} {what}: it is in {spot}", line=spot.line, event=event)

    def find_idle(self) -> Diagnosis | None:
        """No dump tells, but some ranks stand in their own code or a data loader while all others wait."""
        if not self._has_stopped():
            return None
        located = {rank: spot for rank, spot in self.places.items() if spot is not None}
        busy = tuple(rank for rank, spot in located.items() if not spot.waits)
        if busy and (len(busy) < len(located) or len(self.ranks) == 1):
            rest = "while the others wait" if len(located) > 1 else "and goes no further"
            spot = located[busy[0]]
            reason = _OF_ACTIVITIES.get(spot.activity, Reason.HOST)
            return self._answer(reason, busy, f"{_ranks(busy)} is in {spot} {rest}", line=spot.line)
        devices = tuple(rank for rank, spot in located.items() if spot.activity is Activity.DEVICE)
        if devices and len(devices) < len(located):
            spot = located[devices[0]]
            return self._answer(Reason.DEVICE, devices, f"{_ranks(devices)} is in {spot}", line=spot.line)
        return None

    def find_never_started(self) -> Diagnosis | None:
        """Ranks left nothing at all."""
        missing = tuple(rank for rank in range(self.evidence.world_size) if rank not in self.ranks)
        if not missing or not self._has_stopped():
            return None
        return self._answer(Reason.ABSENT, missing, f"{_ranks(missing)} left nothing: did it start?")

    def _has_stopped(self) -> bool:
        """Whether anything went wrong at all: dumps alone are kept for a reason."""
        return (
            not all(_has_ended_well(state) for state in self.ranks.values())
            or not any(state.host for state in self.ranks.values())
            or any(state.noticed_ns for state in self.ranks.values())
        )

    def _answer(
        self,
        reason: Reason,
        ranks: tuple[int, ...],
        text: str,
        *,
        line: CodeFrame | None = None,
        event: MatchedCollective | None = None,
        wrong: CollectiveCall | None = None,
        usual: Token | None = None,
    ) -> Diagnosis:
        waiting = tuple(
            rank for rank, spot in sorted(self.places.items()) if rank not in ranks and spot is not None and spot.waits
        )
        actual = None if wrong is None else Token(wrong.group, signature_of(wrong))
        return Diagnosis(
            reason,
            ranks,
            text,
            line,
            event.group if event is not None else wrong.group if wrong is not None else None,
            event.sequence if event is not None else wrong.sequence if wrong is not None else None,
            None if usual is None else str(usual),
            None if actual is None else str(actual),
            waiting,
        )


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {format_ranges(ranks)}"


SCHEMA = "perfscope/postmortem/1"

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
        notes = (f"Nothing is known of {_ranks(missing)}.",) if missing else ()
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
            _describe_end(state),
        )

    def _calls_section(self) -> Section | None:
        chosen = [*self.diagnosis.ranks[:2], *self.diagnosis.waiting[:1]]
        rows = tuple(
            (rank, call.group, call.sequence, call.operation, str(list(map(list, call.input_sizes))), _state(call))
            for rank in sorted(set(chosen))
            if (state := self.evidence.ranks.get(rank)) is not None and state.dump is not None
            for call in state.dump.calls[-LAST_CALLS:]
        )
        columns = tuple(map(Column, ("Rank", "Group", "Number", "Operation", "Input shapes", "State")))
        return Section("Last collectives", columns, rows) if rows else None


def _state(call: CollectiveCall) -> str:
    if call.is_completed:
        return "over"
    return {True: "started on the device", False: "not started on the device", None: "called"}[call.is_started]


def _place_of(state: RankState) -> CodePlace | None:
    return locate(state.stack.frames) if state.stack is not None else None


def _describe_end(state: RankState) -> str | None:
    death = state.death
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
