"""Records the history of torch's allocator: between a window's start and its end, or until memory runs out.

torch keeps the last events in a ring; nothing is written before the end. A script that records the history itself
keeps its own options: nothing is started or stopped then, and what it recorded is written.
A failure costs the history alone: it becomes a note, and the window and the training go on.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from perfscope.constants import MIB
from perfscope.hooks.guard import call_safely, value_or_none
from perfscope.hooks.introspection import named_modules, named_parameters
from perfscope.hooks.messages import write_message
from perfscope.hooks.module_calls import ModuleCalls
from perfscope.wire.memory import (
    ACTIONS,
    BEGIN,
    COMMUNICATION,
    END,
    GRADIENTS,
    MEMORY_FOLDER,
    MEMORY_SUFFIX,
    OPTIMIZER,
    OTHER_ACTION,
    OUT_OF_MEMORY,
    STEP,
    WEIGHTS,
    WINDOW,
    MemoryHeader,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from perfscope.hooks.config import Config
    from perfscope.hooks.rank_files import RankFiles

    #: The model's parts and the optimizers of a process, when they are asked for.
    Trained = Callable[[], tuple[Sequence[object], Sequence[object]]]

#: The modules of so many steps before an out-of-memory error are named.
_KEPT_STEPS = 2


class ModuleMarks:
    """When modules ran forward and steps began: wall clock, sign of ``wire.memory``, and the module's path or step."""

    def __init__(self) -> None:
        self.times_ns: list[int] = []
        self.signs: list[str] = []
        self.names: list[str] = []
        self._calls = ModuleCalls()

    def start(self, step: int) -> None:
        """Begin to mark modules, at the begin of a training step."""
        self._calls.start(self._mark_call)
        self.add(STEP, str(step))

    def stop(self) -> None:
        """Mark nothing more."""
        self._calls.stop()

    def forget_steps(self) -> None:
        """Drop the marks of all steps but the last ones."""
        steps = [index for index, sign in enumerate(self.signs) if sign == STEP]
        if len(steps) > _KEPT_STEPS:
            for column in (self.times_ns, self.signs, self.names):
                del column[: steps[-_KEPT_STEPS]]

    def add(self, sign: str, name: str) -> None:
        """Mark this moment."""
        if len(self.times_ns) < _MOST_EVENTS:
            self.times_ns.append(time.time_ns())
            self.signs.append(sign)
            self.names.append(name)

    @contextmanager
    def _mark_call(self, name: str) -> Iterator[None]:
        self.add(BEGIN, name)
        try:
            yield
        finally:
            self.add(END, name)


#: Where optimizers that wrap others keep them.
_INNER = ("optimizer", "optim", "base_optimizer", "_optimizer", "chained_optimizers", "optimizers")
#: Attributes in which frameworks keep gradients, and parts of a sharded parameter.
_PARTS = (("ds_tensor", WEIGHTS), ("grad", GRADIENTS), ("main_grad", GRADIENTS))
#: What the names of an optimizer's own tensors tell; other tensors are states.
_ROLES_BY_NAME = (
    ("bucket", COMMUNICATION), ("ipg", COMMUNICATION), ("grad", GRADIENTS), ("bit16", WEIGHTS), ("fp16", WEIGHTS)
)  # fmt: skip
#: Lists of tensors of an optimizer are nested so deep, and have so many elements, at most.
_DEEPEST_LIST = 3
_LONGEST_LIST = 10_000


class StorageRole(NamedTuple):
    """A tensor's storage whose purpose is known: one of ``wire.memory``'s roles, and a name."""

    address: int
    size: int
    role: str
    name: str


def find_roles(parts: Iterable[Any], optimizers: Iterable[Any]) -> list[StorageRole]:
    """Find the storages of parameters, buffers, gradients and optimizer states, each once."""
    roles: dict[int, StorageRole] = {}
    parameters: set[int] = set()
    for part in parts:
        for name, parameter in named_parameters(part):
            parameters.add(id(parameter))
            _add_parameter(roles, name, parameter)
        for prefix, module in named_modules(part):
            for name, tensor in module._buffers.items():
                _add(roles, tensor, WEIGHTS, f"{prefix}.{name}" if prefix else name)
    for optimizer in _unwrapped(optimizers):
        _add_optimizer(roles, optimizer, parameters, has_model=bool(parameters))
    return list(roles.values())


def _add_parameter(roles: dict[int, StorageRole], name: str, parameter: Any) -> None:
    _add(roles, parameter, WEIGHTS, name)
    for attribute, role in _PARTS:
        _add(roles, getattr(parameter, attribute, None), role, name)


def _add_optimizer(roles: dict[int, StorageRole], optimizer: Any, parameters: set[int], *, has_model: bool) -> None:
    """The states, and the parameters that are not the model's own: the copies in fp32 of 16-bit weights."""
    for group in value_or_none(lambda: list(optimizer.param_groups)) or ():
        for parameter in group.get("params", ()):
            if not has_model:
                _add_parameter(roles, "", parameter)
            elif id(parameter) not in parameters:
                _add(roles, parameter, OPTIMIZER, "copy of the weights")
                _add(roles, getattr(parameter, "grad", None), GRADIENTS, "of the copies of the weights")
    for state in value_or_none(lambda: list(optimizer.state.values())) or ():
        for name, value in state.items() if isinstance(state, dict) else ():
            _add(roles, value, OPTIMIZER, str(name))
    for name, value in value_or_none(lambda: list(vars(optimizer).items())) or ():
        role = next((role for part, role in _ROLES_BY_NAME if part in name), OPTIMIZER)
        for tensor in _find_tensors(value, _DEEPEST_LIST):
            _add(roles, tensor, role, name)


def _find_tensors(value: Any, depth: int) -> Iterator[Any]:
    if hasattr(value, "untyped_storage"):
        yield value
    elif depth and isinstance(value, (list, tuple, dict)) and len(value) <= _LONGEST_LIST:
        for inner in list(value.values()) if isinstance(value, dict) else value:
            yield from _find_tensors(inner, depth - 1)


def _unwrapped(optimizers: Iterable[Any]) -> Iterator[Any]:
    waiting, seen = list(optimizers), set[int]()
    while waiting:
        optimizer = waiting.pop(0)
        if optimizer is None or id(optimizer) in seen:
            continue
        seen.add(id(optimizer))
        yield optimizer
        for inner in [vars(optimizer).get(name) for name in _INNER] if hasattr(optimizer, "__dict__") else ():
            waiting += inner if isinstance(inner, (list, tuple)) else [inner]


def _add(roles: dict[int, StorageRole], tensor: Any, role: str, name: str) -> None:
    """Add the storage of a tensor on a GPU; the first role of a storage counts."""
    storage = None if tensor is None else value_or_none(lambda: _storage(tensor))
    if storage is not None and storage[1] > 0:
        roles.setdefault(storage[0], StorageRole(storage[0], storage[1], role, name))


def _storage(tensor: Any) -> tuple[int, int] | None:
    """Address and bytes of a tensor's storage; of a DTensor those of its local part. None where it is on no GPU."""
    local = getattr(tensor, "_local_tensor", tensor)
    if not local.is_cuda:
        return None
    storage = local.untyped_storage()
    return int(storage.data_ptr()), int(storage.nbytes())


#: Events and stacks of one line: lines of about a megabyte.
_CHUNK = 20_000
_LIVE = "active_allocated", "active_awaiting_free", "active_pending_free"


class SnapshotColumns:
    """Makes lines of one device's history, a chunk at a time."""

    def __init__(self) -> None:
        self._texts: dict[str, int] = {}
        self._frames: dict[int, int] = {}
        self._frame_rows: list[tuple[int, int, int]] = []
        self._stacks: dict[tuple[int, ...], int] = {}
        self._stacks_of_lists: dict[int, int] = {}

    def lines(
        self,
        snapshot: Mapping[str, Any],
        device: int,
        tensors: Mapping[str, Sequence[StorageRole]],
        marks: ModuleMarks,
    ) -> Iterator[bytes]:
        """The lines between header and end; texts, frames and stacks stand last, when all of them are known."""
        trace = snapshot["device_traces"][device] if device < len(snapshot["device_traces"]) else []
        yield from self._event_lines(trace)
        yield from self._state_lines([s for s in snapshot["segments"] if s.get("device", device) == device])
        for at, roles in tensors.items():
            yield _line("tensors", at=at, **self._tensor_columns(roles))
        names = [self._text(name) for name in marks.names]
        yield _line("marks", times_ns=marks.times_ns, signs="".join(marks.signs), names=names)
        yield from self._stack_lines()

    def _event_lines(self, trace: Sequence[Mapping[str, Any]]) -> Iterator[bytes]:
        for begin in range(0, len(trace), _CHUNK):
            events = trace[begin : begin + _CHUNK]
            yield _line(
                "events",
                actions="".join([ACTIONS.get(event["action"], OTHER_ACTION) for event in events]),
                addresses=[event.get("addr", event.get("device_free", 0)) for event in events],
                sizes=[event.get("size", 0) for event in events],
                streams=[event.get("stream", 0) for event in events],
                times_us=[event.get("time_us", 0) for event in events],
                stacks=[self._stack(event.get("frames")) for event in events],
            )

    def _state_lines(self, segments: Sequence[Mapping[str, Any]]) -> Iterator[bytes]:
        yield _line(
            "segments",
            addresses=[segment["address"] for segment in segments],
            sizes=[segment["total_size"] for segment in segments],
            streams=[segment.get("stream", 0) for segment in segments],
        )
        blocks = [(segment["address"], segment["blocks"]) for segment in segments]
        rows = [row for begin, inside in blocks for row in _place(begin, inside)]
        yield _line(
            "blocks",
            addresses=[address for address, _ in rows],
            sizes=[block["size"] for _, block in rows],
            requested=[block.get("requested_size", block["size"]) for _, block in rows],
            live=[int(block["state"] in _LIVE) for _, block in rows],
            stacks=[self._stack(block.get("frames")) for _, block in rows],
        )

    def _tensor_columns(self, roles: Sequence[StorageRole]) -> dict[str, list[int]]:
        return {
            "addresses": [role.address for role in roles],
            "sizes": [role.size for role in roles],
            "roles": [self._text(role.role) for role in roles],
            "names": [self._text(role.name) for role in roles],
        }

    def _stack_lines(self) -> Iterator[bytes]:
        stacks = list(self._stacks)
        for begin in range(0, len(stacks), _CHUNK):
            yield _line("stacks", stacks=stacks[begin : begin + _CHUNK])
        yield _line(
            "frames",
            files=[row[0] for row in self._frame_rows],
            functions=[row[1] for row in self._frame_rows],
            line_numbers=[row[2] for row in self._frame_rows],
        )
        yield _line("texts", values=list(self._texts))

    def _stack(self, frames: Sequence[Mapping[str, Any]] | None) -> int:
        """The number of a stack; torch repeats the same list for each event with the same stack."""
        if not frames:
            return -1
        number = self._stacks_of_lists.get(id(frames))
        if number is None:
            stack = tuple([self._frame(frame) for frame in frames])
            number = self._stacks.setdefault(stack, len(self._stacks))
            self._stacks_of_lists[id(frames)] = number
        return number

    def _frame(self, frame: Mapping[str, Any]) -> int:
        number = self._frames.get(id(frame))
        if number is None:
            number = self._frames[id(frame)] = len(self._frame_rows)
            row = self._text(str(frame["filename"])), self._text(str(frame["name"])), int(frame["line"])
            self._frame_rows.append(row)
        return number

    def _text(self, text: str) -> int:
        return self._texts.setdefault(text, len(self._texts))


def _place(begin: int, blocks: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Each block of a segment with its address, which older versions of torch do not state."""
    for block in blocks:
        begin = int(block.get("address", begin))
        yield begin, block
        begin += int(block["size"])


def _line(kind: str, **columns: object) -> bytes:
    return json.dumps({"kind": kind, **columns}, separators=(",", ":")).encode() + b"\n"


#: Events that torch keeps, and marks: a step of a large model has some ten thousand events of some hundred bytes.
_MOST_EVENTS = 1_000_000
_SMALLEST_FREE_BYTES = 64 * MIB


class NoHistory(Exception):
    """The allocator's history cannot be recorded or written here."""


class HistoryRecorder:
    """One recording of the allocator's history."""

    def __init__(self, run_dir: str, trained: Trained, *, most_events: int = _MOST_EVENTS) -> None:
        self.marks = ModuleMarks()
        self._run_dir = run_dir
        self._trained = trained
        self._most_events = most_events
        self._first_step = 0
        self._started_ns = 0
        self._starts: list[StorageRole] = []
        self._is_ours = False

    def start(self, step: int) -> None:
        """Begin to record, at the begin of a step. Raises NoHistory: no GPU is in use, or torch does not record."""
        torch = sys.modules["torch"]
        if not is_in_use(torch):
            raise NoHistory("no GPU is in use, and only the allocator of CUDA has a history")
        record = getattr(torch.cuda.memory, "_record_memory_history", None)
        if record is None:
            raise NoHistory(f"torch {torch.__version__} does not record it")
        self._starts = find_roles(*self._trained())
        self._first_step, self._started_ns = step, time.time_ns()
        if not getattr(torch._C, "_cuda_isHistoryEnabled", bool)():  # the script records it itself
            try:
                record("all", context="alloc", stacks="python", max_entries=self._most_events)
            except (TypeError, RuntimeError) as error:
                raise NoHistory(f"torch {torch.__version__} cannot record it: {error}") from None
            self._is_ours = True
        self.marks.start(step)

    def stop(self) -> None:
        """Record nothing more, and drop what was recorded."""
        self.marks.stop()
        if self._is_ours:
            self._is_ours = False
            sys.modules["torch"].cuda.memory._record_memory_history(None)

    def write(self, rank: int, last_step: int, cause: str = WINDOW, *, request_bytes: int | None = None) -> list[str]:
        """Write what was recorded of each device in use; returns the files' names. Raises NoHistory or OSError."""
        folder = os.path.join(self._run_dir, MEMORY_FOLDER)
        os.makedirs(folder, exist_ok=True)
        if shutil.disk_usage(folder).free < _SMALLEST_FREE_BYTES:
            raise NoHistory(f"less than {_SMALLEST_FREE_BYTES // MIB} MiB are free in {folder}")
        torch = sys.modules["torch"]
        tensors = {"start": self._starts, "end": find_roles(*self._trained())}
        snapshot = torch.cuda.memory._snapshot()
        traces = snapshot["device_traces"]
        names = []
        for device in [device for device, trace in enumerate(traces) if trace] or [torch.cuda.current_device()]:
            header = self._describe(torch, rank, device, last_step=last_step, cause=cause, request_bytes=request_bytes)
            name = f"{header.host}_{header.pid}.{time.time_ns()}{MEMORY_SUFFIX}"
            lines = SnapshotColumns().lines(snapshot, device, tensors, self.marks)
            _write_lines(os.path.join(folder, name), header, lines, len(traces[device]) if traces else 0)
            names.append(name)
        return names

    def _describe(self, torch: Any, rank: int, device: int, **ending: Any) -> MemoryHeader:
        stats = torch.cuda.memory_stats_as_nested_dict(device)
        free_bytes, total_bytes = torch.cuda.mem_get_info(device)
        return MemoryHeader(
            rank=rank,
            host=socket.gethostname(),
            pid=os.getpid(),
            device=device,
            first_step=self._first_step,
            started_ns=self._started_ns,
            stopped_ns=time.time_ns(),
            allocated_bytes=int(stats["allocated_bytes"]["all"]["current"]),
            reserved_bytes=int(stats["reserved_bytes"]["all"]["current"]),
            peak_allocated_bytes=int(stats["allocated_bytes"]["all"]["peak"]),
            peak_reserved_bytes=int(stats["reserved_bytes"]["all"]["peak"]),
            device_free_bytes=int(free_bytes),
            device_total_bytes=int(total_bytes),
            limit=self._most_events,
            torch=str(torch.__version__),
            **ending,
            bucket_bytes=value_or_none(lambda: _bucket_bytes(self._trained()[0])),
        )


def is_in_use(torch: Any) -> bool:
    """Whether the process uses a GPU: asking the allocator earlier would initialise CUDA."""
    return bool(torch.cuda.is_available() and torch.cuda.is_initialized())


def _bucket_bytes(parts: Iterable[Any]) -> tuple[int, ...] | None:
    """The sizes of DDP's buckets, where gradients are copied into them; None elsewhere."""
    for part in parts:
        if not hasattr(part, "reducer") or getattr(part, "gradient_as_bucket_view", True):
            continue
        data = part._get_ddp_logging_data()
        text = data.get("rebuilt_bucket_sizes") or data.get("bucket_sizes") or ""
        return tuple(int(size) for size in str(text).replace(",", " ").split())
    return None


def _write_lines(path: str, header: MemoryHeader, lines: Iterable[bytes], events: int) -> None:
    folder, name = os.path.split(path)
    unfinished = os.path.join(folder, f".tmp-{name}")
    fields = {name: value for name, value in asdict(header).items() if value is not None}
    try:
        with open(unfinished, "wb") as file:
            file.write(json.dumps(fields).encode() + b"\n")
            for line in lines:
                file.write(line)
            file.write(json.dumps({"kind": "end", "events": events}).encode() + b"\n")
        os.replace(unfinished, path)
    finally:
        if os.path.exists(unfinished):
            os.unlink(unfinished)


#: Events that are kept for an out-of-memory error: some steps of a large model.
_EVENTS_BEFORE_ERROR = 200_000
#: A script that catches its out-of-memory errors may have thousands.
_MOST_ERRORS = 2


class MemoryRecording:
    """The histories of one process."""

    def __init__(self, config: Config, files: RankFiles, trained: Trained) -> None:
        self._config = config
        self._files = files
        self._trained = trained
        self._window: HistoryRecorder | None = None
        self._until_error: HistoryRecorder | None = None
        self._errors = 0
        self._step = 1

    @property
    def watches_for_errors(self) -> bool:
        """Whether the history is written when memory runs out."""
        return self._until_error is not None

    def start_window(self, step: int) -> None:
        """A window opens before a step."""
        if self._config.memory and self._window is None:
            self._window = history = HistoryRecorder(self._config.run_dir, self._trained)
            if not self._safely(lambda: history.start(step), "is not recorded"):
                self.discard_window()

    def on_step(self, step: int) -> None:
        """A step of a window begins."""
        if self._window is not None:
            self._window.marks.add(STEP, str(step))

    def finish_window(self, last_step: int) -> None:
        """The window ends after a step."""
        history = self._window
        if history is not None:
            self._safely(lambda: history.write(self._files.claim().who.rank, last_step), "is lost")
            self.discard_window()

    def discard_window(self) -> None:
        """Record nothing more."""
        history, self._window = self._window, None
        if history is not None:
            call_safely(history.stop)

    def watch_for_errors(self, step: int) -> None:
        """Record from here on, where it is wanted, until memory runs out."""
        if not self._config.on_oom:
            return
        history = HistoryRecorder(self._config.run_dir, self._trained, most_events=_EVENTS_BEFORE_ERROR)
        if not self._safely(lambda: history.start(step), "is not recorded"):
            call_safely(history.stop)
            return
        self._until_error = history
        self._safely(self._attach_observer, "is not written when memory runs out")

    def on_any_step(self, step: int) -> None:
        """A step begins, in a window or not."""
        self._step = step
        if self._until_error is not None:
            self._until_error.marks.forget_steps()
            self._until_error.marks.add(STEP, str(step))

    def forget(self) -> None:
        """Write nothing in a forked child."""
        self._window = self._until_error = None

    def _attach_observer(self) -> None:
        attach: Callable[[Callable[..., None]], None] | None
        attach = getattr(sys.modules["torch"]._C, "_cuda_attach_out_of_memory_observer", None)
        if attach is None:
            raise NoHistory("this version of torch reports no out-of-memory errors")
        attach(self._on_out_of_memory)

    def _on_out_of_memory(self, _device: int, request_bytes: int, *_state: int) -> None:
        """Torch calls this before it raises the error, without the allocator's lock; nothing may leave it."""
        history = self._until_error
        self._errors += 1
        if history is None or self._errors > _MOST_ERRORS:
            return

        def write() -> None:
            rank = self._files.claim().who.rank
            names = history.write(rank, self._step, OUT_OF_MEMORY, request_bytes=int(request_bytes))
            write_message(f"memory ran out in step {self._step}: the allocator's history is in {', '.join(names)}")

        self._safely(write, "is lost")

    def _safely(self, action: Callable[[], object], loss: str) -> bool:
        """Whether an action succeeded; a note says why not."""
        _, error = call_safely(action)
        if error is not None:
            reason = str(error) if isinstance(error, (NoHistory, OSError)) else repr(error)
            self._files.note(f"the allocator's history {loss}: {reason}")
        return error is None
