"""What a run, or a folder of the Flight Recorder's dumps, holds of a stall or a failure; no code of a dump runs.

A dump has ``entries``, one for each collective, and ``pg_config`` with the members of the groups. Fields that a version
of torch does not write are absent: versions since 2.3 are read alike, and what is no entry is left out and named.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from perfscope import wire
from perfscope.errors import SourceError
from perfscope.files import read_regular
from perfscope.sources.pickles import LARGEST_PICKLE, MOST_DIMENSIONS, PickleDamage, PlainUnpickler
from perfscope.sources.runs.folder import is_run
from perfscope.sources.runs.records import read_object, read_rank_record, read_records
from perfscope.sources.runs.step_columns import read_step_columns
from perfscope.tables.postmortem import (
    CollectiveCall,
    Death,
    Failure,
    KernelError,
    PostMortem,
    RankState,
    RecorderDump,
    ThreadStack,
)
from perfscope.wire import incidents
from perfscope.wire.incidents import CodeFrame

_COMPLETED = "completed"
_STARTED = ("started", _COMPLETED)
_OF_NCCL = "nccl"
_BATCH = "coalesced"


def read_dump(path: Path) -> tuple[RecorderDump, list[str]]:
    """Read one rank's dump; the texts say what of it cannot be read.

    Raises SourceError: the file is no dump, or is cut off.
    """
    try:
        if path.stat().st_size > LARGEST_PICKLE:
            raise SourceError(path, f"has more than {LARGEST_PICKLE:,} bytes: it is no dump of the Flight Recorder")
        content = read_regular(path)
    except OSError as error:
        raise SourceError(path, f"cannot be read: {error.strerror}") from None
    try:
        document = _decode(content)
    except (PickleDamage, ValueError, RecursionError) as error:
        problem = f"is not a complete dump of the Flight Recorder: {str(error)[:120]}"
        raise SourceError(path, problem) from None
    entries = document.get("entries") if isinstance(document, Mapping) else None
    if not isinstance(document, Mapping) or not isinstance(entries, Sequence):
        raise SourceError(path, "is no dump of the Flight Recorder: it has no entries")
    calls, unreadable = _to_calls(entries)
    damage = [f"{path.name}: {unreadable} of {len(entries)} entries cannot be read"] if unreadable else []
    calls.sort(key=lambda call: call.created_ns)
    return RecorderDump(tuple(calls), _members(document)), damage


def _decode(content: bytes) -> object:
    if content.lstrip()[:1] == b"{":
        return json.loads(content)
    return PlainUnpickler(content).read_value().value


def _to_calls(entries: Sequence[object]) -> tuple[list[CollectiveCall], int]:
    """The calls of a dump, and how many entries cannot be read.

    After the sends and receives of a batch NCCL's recorder writes an entry ``coalesced``. It has the number of the
    collective before it, and the batch's own number of sends and receives. It is no collective, but it alone knows
    whether the batch has begun and is over: its state becomes the state of the batch's calls.
    """
    calls: list[CollectiveCall] = []
    lists: dict[int, tuple[Any, ...]] = {}
    unreadable = 0
    for entry in entries:
        call = _to_call(entry, lists)
        if call is None or not isinstance(entry, Mapping):
            unreadable += 1
        elif call.operation != _BATCH:
            calls.append(call)
        else:
            number = entry.get("p2p_seq_id")
            before = next((earlier for earlier in reversed(calls) if earlier.group == call.group), None)
            if before is not None and before.is_p2p and before.sequence == number:
                _set_state(calls, before, call)
            elif before is not None or not number:  # else what the batch sent is forgotten already
                calls.append(call)
    return calls, unreadable


def _set_state(calls: list[CollectiveCall], last: CollectiveCall, batch: CollectiveCall) -> None:
    for index in range(len(calls) - 1, -1, -1):
        call = calls[index]
        if call.group != last.group:
            continue
        if not call.is_p2p or call.sequence != last.sequence:
            break
        calls[index] = replace(call, is_started=batch.is_started, is_completed=batch.is_completed)


def _to_call(entry: object, lists: dict[int, tuple[Any, ...]]) -> CollectiveCall | None:
    """A call; ``lists`` has each list of shapes or frames, so that one that many entries share is read once."""
    if not isinstance(entry, Mapping):
        return None
    backend, _, operation = _text(entry.get("profiling_name")).partition(":")
    is_p2p = entry.get("is_p2p") is True
    sequence = entry.get("p2p_seq_id" if is_p2p else "collective_seq_id", entry.get("seq_id"))
    created_ns = entry.get("time_created_ns")
    if not operation or type(sequence) is not int or type(created_ns) is not int:
        return None
    group = entry.get("process_group")
    name = group[0] if isinstance(group, Sequence) and len(group) > 1 else ""
    state, is_retired = entry.get("state"), entry.get("retired")
    # gloo does not report states; torch's own entry of a collective that is over is retired, though.
    is_completed = state == _COMPLETED or (backend != _OF_NCCL and is_retired is True)
    return CollectiveCall(
        group=_text(name) or str(entry.get("pg_id", "")),
        sequence=sequence,
        is_p2p=is_p2p,
        operation=operation,
        input_sizes=_read_once(lists, entry.get("input_sizes"), _shapes),
        dtypes=_read_once(lists, entry.get("input_dtypes"), _texts),
        created_ns=created_ns,
        is_started=(state in _STARTED or bool(entry.get("time_discovered_started_ns")))
        if backend == _OF_NCCL
        else None,
        is_completed=is_completed,
        frames=_read_once(lists, entry.get("frames"), _lines),
    )


def _read_once(
    lists: dict[int, tuple[Any, ...]], value: object, read: Callable[[object], tuple[Any, ...]]
) -> tuple[Any, ...]:
    if id(value) not in lists:
        lists[id(value)] = read(value)
    return lists[id(value)]


def _texts(value: object) -> tuple[str, ...]:
    return tuple(_text(name) for name in _list(value))


def _lines(value: object) -> tuple[CodeFrame, ...]:
    return tuple(
        CodeFrame(_text(frame.get("filename")), frame["line"], _text(frame.get("name")))
        for frame in _list(value)
        if isinstance(frame, Mapping) and type(frame.get("line")) is int
    )


def _members(document: Mapping[object, object]) -> dict[str, tuple[int, ...]]:
    """The ranks of each group; torch writes them as text, such as ``[0, 1]``."""
    members: dict[str, tuple[int, ...]] = {}
    config = document.get("pg_config")
    for key, group in config.items() if isinstance(config, Mapping) else ():
        text = group.get("ranks") if isinstance(group, Mapping) else None
        words = text.strip("[]").replace(",", " ").split() if isinstance(text, str) else []
        if words and all(word.isdecimal() for word in words):
            members[str(key)] = tuple(sorted(int(word) for word in words))
    return members


def _shapes(value: object) -> tuple[tuple[int, ...], ...]:
    shapes = [_list(shape) for shape in _list(value)]
    return tuple(
        tuple(size for size in shape if isinstance(size, int)) if len(shape) <= MOST_DIMENSIONS else ()
        for shape in shapes
    )


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


_THREAD = re.compile(r"^(?:Current thread|Thread) (0x[0-9a-f]+)[^:]*\(most recent call first\):$")
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')


def parse_stacks(text: str) -> list[ThreadStack]:
    """The stacks of all threads, in the order of the text; lines of another kind are passed over."""
    stacks: list[tuple[str, list[CodeFrame]]] = []
    for line in text.splitlines():
        thread = _THREAD.match(line)
        frame = _FRAME.match(line)
        if thread is not None:
            stacks.append((thread[1], []))
        elif frame is not None and stacks:
            stacks[-1][1].append(CodeFrame(frame["file"], int(frame["line"]), frame["function"]))
    return [ThreadStack(thread, tuple(frames)) for thread, frames in stacks]


def find_training_stack(stacks: list[ThreadStack], thread: str | None) -> ThreadStack | None:
    """The stack of the thread that trains: by its name, else the main thread, which faulthandler writes last."""
    named = next((stack for stack in stacks if thread is not None and int(stack.thread, 16) == int(thread, 16)), None)
    return named or (stacks[-1] if stacks else None)


_DUMP_NAME = re.compile(r"(?:.*\D)?(\d+)(?:\.(?:pickle|pkl|json))?")
_decode_incident = msgspec.json.Decoder(incidents.IncidentRecord).decode
#: What faulthandler writes at a fatal signal.
_FATAL_SIGNALS = {
    "Fatal Python error: Aborted": signal.SIGABRT,
    "Fatal Python error: Segmentation fault": signal.SIGSEGV,
    "Fatal Python error: Bus error": signal.SIGBUS,
    "Fatal Python error: Illegal instruction": signal.SIGILL,
    "Fatal Python error: Floating-point exception": signal.SIGFPE,
    "Fatal Python error: Floating point exception": signal.SIGFPE,
}
_READ_FOLDERS = frozenset((wire.RANKS_FOLDER, incidents.DEATHS_FOLDER, incidents.RECORDER_FOLDER))


def read_post_mortem(path: Path) -> PostMortem:
    """Read a run, or a folder of dumps whose names end in the rank.

    Raises SourceError: it is neither, or holds nothing of any rank.
    """
    if not path.is_dir():
        raise SourceError(path, "is neither a run nor a folder of dumps", hint="name the folder")
    return _read_run(path) if is_run(path) else _read_dumps(path)


def is_read(name: str) -> bool:
    """Whether a file is read of a run or of a folder of dumps, by its name relative to that folder."""
    folder, _, rest = name.partition("/")
    return folder in _READ_FOLDERS if rest else name != wire.PAGE_FILE


def _read_dumps(folder: Path) -> PostMortem:
    damage: list[str] = []
    ranks: dict[int, RankState] = {}
    unreadable: set[int] = set()
    for file in sorted(folder.iterdir()):
        match = _DUMP_NAME.fullmatch(file.name)
        if match is None or not file.is_file() or file.name.startswith("."):
            continue
        dump = _try_dump(file, damage)
        rank = int(match[1])
        if dump is None:
            unreadable.add(rank)
        else:
            ranks[rank] = RankState(rank, dump=_merge_dumps([ranks[rank].dump, dump] if rank in ranks else [dump]))
    if not ranks:
        problem = f"holds no dump of the Flight Recorder{f': {damage[0]}' if damage else ''}"
        raise SourceError(folder, problem, hint="names of dumps end in the rank, such as nccl_trace_rank_0")
    members = [max(ranks) for state in ranks.values() if state.dump for ranks in state.dump.members.values()]
    world_size = 1 + max([*ranks, *members])
    for rank in unreadable & set(range(world_size)):  # it did start; another file may end in any number
        ranks.setdefault(rank, RankState(rank))
    return PostMortem(str(folder), ranks, world_size, damage=tuple(damage))


def _read_run(run: Path) -> PostMortem:
    damage: list[str] = []
    description = read_object(run / wire.RUN_FILE) or {}
    deaths, errors = _read_deaths(run / incidents.DEATHS_FOLDER)
    folders = _latest_folders(run / wire.RANKS_FOLDER)
    ranks, world_size, devices = {}, 0, dict[str, list[int]]()
    for rank, (attempt, folder) in folders.items():
        record = read_rank_record(folder)
        death = deaths.get((rank, attempt))
        if death is not None and death.signal is None and death.exit_code is None:  # the launcher was quicker
            fatal_text = _read_text(folder / incidents.FATAL_FILE)
            number = next((int(number) for line, number in _FATAL_SIGNALS.items() if line in fatal_text), None)
            death = replace(death, signal=number)
        state = _read_rank(run, folder, rank, death, damage)
        if record is not None:
            world_size = max(world_size, record.world_size)
            state = replace(state, host=record.host)
            for uuid in record.device_uuids or (record.device_uuid,):
                devices.setdefault(str(uuid), []).append(rank)
        ranks[rank] = replace(state, death=death)
    if not ranks:
        raise SourceError(
            run, "holds nothing of any rank", hint="no process reached torch.distributed or a step: see its own output"
        )
    status = description.get("exit_status")
    return PostMortem(
        str(run),
        ranks,
        max(world_size, 1 + max(ranks)),
        tuple(replace(error, ranks=tuple(devices.get(error.uuid, ()))) for error in errors),
        status if isinstance(status, str) else None,
        tuple(damage),
    )


def _latest_folders(ranks: Path) -> dict[int, tuple[int, Path]]:
    latest: dict[int, tuple[int, Path]] = {}
    for folder in sorted(ranks.iterdir()) if ranks.is_dir() else ():
        parsed = wire.parse_rank_folder(folder.name)
        if parsed is not None and folder.is_dir() and parsed[1] >= latest.get(parsed[0], (0, folder))[0]:
            latest[parsed[0]] = parsed[1], folder
    return latest


def _read_rank(run: Path, folder: Path, rank: int, death: Death | None, damage: list[str]) -> RankState:
    records = read_records(folder / incidents.INCIDENTS_FILE, _decode_incident, damage)
    by_number = {record.number: record for record in records if record.kind != incidents.RESUMED}
    resumed = {record.number for record in records if record.kind == incidents.RESUMED}
    stalls = [record for record in by_number.values() if record.kind == incidents.STALL]
    failure = next((record for record in by_number.values() if record.kind == incidents.FAILURE), None)
    open_stalls = [record for record in stalls if record.number not in resumed]
    # A stall that lasts shows all ranks in the same moment; what fails because of it does so one after the other.
    # One that was over says nothing about how a process ended badly later.
    has_ended = '"kind":"end"' in _read_text(folder / wire.EVENTS_FILE)
    is_code_unknown = death is not None and death.exit_code is None and death.signal is None
    has_ended_well = death is None or death.exit_code == 0 or (is_code_unknown and has_ended and failure is None)
    last_stall = stalls[-1] if stalls and has_ended_well else None
    chosen = open_stalls[-1] if open_stalls else failure or last_stall
    dumps = [] if chosen is None else _dumps_of(folder, chosen.number, damage)
    dumps += [_try_dump(path, damage) for path in sorted((run / incidents.RECORDER_FOLDER).glob(f"*_{rank}"))]
    stacks = [] if chosen is None else parse_stacks(_read_text(folder / incidents.stacks_file(chosen.number)))
    thread = None if chosen is None else chosen.training_thread
    fatal_text = _read_text(folder / incidents.FATAL_FILE)
    fatal = parse_stacks(fatal_text)
    stack = find_training_stack(stacks, thread)
    if failure is not None and chosen is failure:  # the stack is that of the interpreter's end
        stack = ThreadStack("", _to_failure(failure).frames)
    is_fatal = stack is None and bool(fatal)
    return RankState(
        rank=rank,
        step=max([_last_step(folder), *(record.step for record in by_number.values())]),
        dump=_merge_dumps([dump for dump in dumps if dump is not None]),
        stack=find_training_stack(fatal, None) if is_fatal else stack,
        source_text="" if chosen is None or is_fatal else chosen.source or "",
        is_library_abort="Fatal Python error: Aborted" in fatal_text and "Current thread" not in fatal_text,
        stalled_ns=None if chosen is None or chosen.kind != incidents.STALL else chosen.idle_ns,
        noticed_ns=None if chosen is None or chosen.kind != incidents.STALL else chosen.wall_ns,
        has_resumed=bool(stalls) and not open_stalls,
        failure=None if failure is None else _to_failure(failure),
        has_ended=has_ended,
    )


def _to_failure(record: incidents.IncidentRecord) -> Failure:
    return Failure(record.error or "", record.message or "", record.wall_ns, tuple(reversed(record.frames or ())))


def _dumps_of(folder: Path, number: int, damage: list[str]) -> list[RecorderDump | None]:
    names = [folder / incidents.recorder_file(number, kind) for kind in incidents.RECORDER_KINDS]
    return [_try_dump(name, damage) for name in names if name.is_file()]


def _try_dump(path: Path, damage: list[str]) -> RecorderDump | None:
    try:
        dump, problems = read_dump(path)
    except SourceError as error:
        if path.stat().st_size:
            damage.append(error.problem)
        return None
    damage += problems
    return dump


def _merge_dumps(dumps: Sequence[RecorderDump | None]) -> RecorderDump | None:
    """The calls of several dumps of a process: of its kinds of backends, and of torch's own at a timeout."""
    parts = [dump for dump in dumps if dump is not None]
    if len(parts) < 2:  # noqa: PLR2004 - nothing to merge
        return parts[0] if parts else None
    calls = {
        (call.created_ns, call.group, call.sequence, call.operation): call for dump in parts for call in dump.calls
    }
    members = {name: ranks for dump in parts for name, ranks in dump.members.items()}
    ordered = sorted(calls.values(), key=lambda call: call.created_ns)
    return RecorderDump(tuple(ordered), members)


def _read_deaths(folder: Path) -> tuple[dict[tuple[int, int], Death], list[KernelError]]:
    deaths: dict[tuple[int, int], Death] = {}
    errors: list[KernelError] = []
    for fields in _read_lines(folder):
        wall_ns = fields.get("wall_ns")
        numbers = {name: value for name, value in fields.items() if type(value) is int}
        if type(wall_ns) is not int:
            continue
        if fields.get("kind") == "death" and {"rank", "attempt"} <= set(numbers):
            how = {name: numbers.get(name) for name in ("exit_code", "signal", "memory_kills")}
            deaths[numbers["rank"], numbers["attempt"]] = Death(wall_ns, **how)
        elif fields.get("kind") == "xid" and "xid" in numbers:
            errors.append(KernelError(str(fields.get("uuid")), numbers["xid"], wall_ns))
    return deaths, errors


def _read_lines(folder: Path) -> Iterator[Mapping[str, int | str]]:
    for file in sorted(folder.glob("*.jsonl")) if folder.is_dir() else ():
        for line in _read_bytes(file).splitlines():
            try:
                fields = json.loads(line)
            except (ValueError, RecursionError):
                continue  # the disk was full, or the process is still writing
            if isinstance(fields, dict):
                yield fields


def _read_text(path: Path) -> str:
    return _read_bytes(path).decode(errors="replace")


def _read_bytes(path: Path) -> bytes:
    try:
        return read_regular(path)
    except OSError:
        return b""


def _last_step(folder: Path) -> int:
    for line in reversed(_read_text(folder / wire.STEPS_FILE).splitlines()):
        try:
            return int(json.loads(line)["step"])
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    steps = read_step_columns(folder, damage=[]).whole("step")  # the last lines were just put aside
    return int(steps[-1]) if len(steps) else 0
