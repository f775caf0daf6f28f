"""What a thread is doing, read from its Python stack."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from perfscope.constants import NS_PER_S
from perfscope.tables.postmortem import KernelError, PostMortem, RankState
from perfscope.wire.incidents import CodeFrame

#: Our own hooks stand between a script and the functions that they wrap.
_HOOKS = (
    "/perfscope/hooks/",
    "/hooks/frameworks/",
    "/hooks/timers/",
    "/hooks/facts/",
    "/hooks/guard.py",
    "/hooks/capture.py",
)
_LIBRARIES = ("/torch/", "/deepspeed/", "<frozen", "<string>", *_HOOKS)
_STANDARD_LIBRARY = "/lib/python3"
_INSTALLED = ("/site-packages/", "/dist-packages/")
_COMMUNICATION = ("/torch/distributed/", "/deepspeed/comm/", "/hooks/timers/exchanges.py")
_LOADING = ("/torch/utils/data/", "/deepspeed/runtime/dataloader.py")
_SAVING = ("/torch/serialization.py", "/torch/distributed/checkpoint/", "/safetensors/")


_COLLECTIVE = re.compile(
    r"_?(all_reduce|all_gather|all_to_all|reduce_scatter|broadcast|barrier|monitored_barrier|reduce|gather|scatter)"
)


class Activity(StrEnum):
    """What a thread is in."""

    COMMUNICATION = "communication"
    LOADING = "data loading"
    SAVING = "a checkpoint save"
    BACKWARD = "the backward pass"
    DEVICE = "a wait for the device"
    HOST = "its own code"


_OF_LIBRARIES = {
    Activity.SAVING: _SAVING,
    Activity.COMMUNICATION: _COMMUNICATION,
    Activity.BACKWARD: ("/torch/autograd/",),
    Activity.DEVICE: ("/torch/cuda/",),
}
_OF_TEXTS = {
    Activity.COMMUNICATION: re.compile(r"\.wait\("),
    Activity.DEVICE: re.compile(r"\.(item|tolist|cpu|numpy|synchronize)\("),
}


@dataclass(frozen=True, slots=True)
class CodePlace:
    """Where a thread is: its activity, the innermost line of the user's code, and the function called there."""

    activity: Activity
    line: CodeFrame | None
    call: str = ""

    @property
    def waits(self) -> bool:
        """Whether other ranks may keep it there."""
        return self.activity in (Activity.COMMUNICATION, Activity.BACKWARD, Activity.DEVICE)

    @property
    def collective(self) -> str:
        """The collective that it waits in, without its variant; empty outside of one."""
        match = _COLLECTIVE.match(self.call) if self.activity is Activity.COMMUNICATION else None
        return match[1] if match else ""

    def __str__(self) -> str:
        return f"{self.activity} at {self.line}" if self.line is not None else str(self.activity)


def locate(frames: Sequence[CodeFrame], text: str = "") -> CodePlace | None:
    """Where a thread is, by its frames, the innermost first; ``text`` is that one's code, as C has no frame."""
    if not frames:
        return None
    index = next((index for index, frame in enumerate(frames) if _is_own(frame.file)), None)
    inner = frames[:index] if index is not None else frames
    line = None if index is None else frames[index]
    names = [frame.function for frame in inner if _matches(frame.file, _COMMUNICATION) and frame.function != "wrapper"]
    call = names[0] if names else inner[-1].function if inner else ""
    activity = Activity.LOADING if _passes(frames, _LOADING) else _classify(inner, text)
    return CodePlace(activity, line, call)


def _classify(inner: Sequence[CodeFrame], text: str) -> Activity:
    """What the frames of libraries above the user's own line are in; without any, what the line says."""
    for activity, parts in _OF_LIBRARIES.items():
        if _passes(inner, parts):
            return activity
    if inner:
        return Activity.HOST
    return next((activity for activity, pattern in _OF_TEXTS.items() if pattern.search(text)), Activity.HOST)


def own_line(frames: Sequence[CodeFrame]) -> CodeFrame | None:
    """The innermost line of the user's own code."""
    return next((frame for frame in frames if _is_own(frame.file)), None)


def is_same_place(frames: Sequence[CodeFrame], call: Sequence[CodeFrame]) -> bool:
    """Whether two stacks are the same call, line by line; our own hooks do not count."""
    first, second = ([frame for frame in side if not _matches(frame.file, _HOOKS)] for side in (frames, call))
    return bool(first) and first == second


def _is_own(file: str) -> bool:
    if any(part in file for part in _LIBRARIES):
        return False
    return _STANDARD_LIBRARY not in file or any(part in file for part in _INSTALLED)


def _passes(frames: Sequence[CodeFrame], parts: Sequence[str]) -> bool:
    return any(_matches(frame.file, parts) for frame in frames)


def _matches(file: str, parts: Sequence[str]) -> bool:
    return any(part in file for part in parts)


#: What a rank says that lost another one, or waited for it for too long.
_OF_OTHERS = re.compile(
    r"connection (closed|reset|refused)|broken pipe|timed? ?out|gloo|nccl|watchdog|socket|tcpstore|DistBackendError"
    r"|DistNetworkError|DistStoreError|remote process|heartbeat",
    re.IGNORECASE,
)
_OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemoryError|can't allocate memory|cannot allocate memory|MemoryError|bad_alloc", re.IGNORECASE
)
_KERNEL_FAILURE = re.compile(
    r"illegal memory access|device-side assert|launch failure|misaligned address|illegal instruction|ECC error"
    r"|hardware stack error|unspecified launch|uncorrectable|illegal address",
    re.IGNORECASE,
)
#: What launchers, schedulers and people end processes with.
_ASKED_TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)

#: The driver reports what a process leaves on a device as the process is taken down.
_END_NS = NS_PER_S


class Reason(StrEnum):
    """Why a training stalled or failed."""

    SKIPPED = "skipped collective"
    SIZE = "wrong size"
    DTYPE = "wrong type"
    OPERATION = "wrong operation"
    ORDER = "wrong order"
    GROUP = "wrong group"
    CRASH = "crash"
    MEMORY = "out of memory"
    KERNEL = "kernel failure"
    HOST = "host stall"
    LOADING = "data loader stall"
    SAVING = "checkpoint stall"
    DEVICE = "device hang"
    ABSENT = "rank never started"
    LEFT = "rank ended early"
    UNKNOWN = "unknown"
    NOTHING = "nothing happened"


@dataclass(frozen=True, slots=True)
class FirstFailure:
    """The failure that others followed: its rank, kind, moment on the wall clock, and a sentence about it."""

    rank: int
    kind: Reason
    wall_ns: int
    text: str


def find_first_failure(evidence: PostMortem, *, with_libraries: bool = False) -> FirstFailure | None:
    """The first failure that is no consequence of another rank's, nor, by default, the abort of a library."""
    stalls = [state.noticed_ns for state in evidence.ranks.values() if state.noticed_ns and not state.has_resumed]
    stalled_ns = min(stalls, default=None)
    failures = [
        failure
        for state in evidence.ranks.values()
        for failure in _failures_of(state, evidence)
        if with_libraries or not _is_abort_of_library(state)
        if stalled_ns is None or failure.wall_ns < stalled_ns or failure.kind is not Reason.CRASH
    ]
    return min(failures, key=lambda failure: failure.wall_ns, default=None)


def describe_unknown(evidence: PostMortem) -> str:
    """What is known where no rank can be named: whose process ended first."""
    ends = [
        (state.death.wall_ns, state.death.signal, state.rank)
        for state in evidence.ranks.values()
        if state.death and not state.has_ended
    ]
    text = "the evidence does not show which rank is to blame"
    if not ends:
        return text
    _, number, rank = min(ends, key=lambda end: end[0])
    usual = ", as launchers and people send it" if number in _ASKED_TO_END else ""
    how = "how was not seen" if number is None else f"by {_name(number)}{usual}"
    return f"{text}; the process of rank {rank} ended first, {how}"


def _failures_of(state: RankState, evidence: PostMortem) -> Iterator[FirstFailure]:
    death, failure = state.death, state.failure
    for error in evidence.kernel_errors:
        if state.rank in error.ranks and not _is_of_an_end(error, evidence):
            text = f"the driver reported Xid {error.xid} of GPU {error.uuid}"
            yield FirstFailure(state.rank, Reason.KERNEL, error.wall_ns, text)
    if failure is not None:
        text = f"{failure.error}: {failure.message}"
        kind = _kind_of(text)
        if kind is not Reason.CRASH or not _OF_OTHERS.search(text):
            yield FirstFailure(state.rank, kind, failure.wall_ns, _shorten(text))
        return
    if death is None:
        return
    if death.signal is not None and death.signal not in _ASKED_TO_END:
        if death.signal == signal.SIGKILL and death.memory_kills:
            text = "the kernel killed the process for want of host memory"
            yield FirstFailure(state.rank, Reason.MEMORY, death.wall_ns, text)
        else:
            yield FirstFailure(state.rank, Reason.CRASH, death.wall_ns, f"it was ended by {_name(death.signal)}")
    elif death.exit_code:
        text = f"it ended with exit code {death.exit_code}, without an exception that reached the interpreter"
        yield FirstFailure(state.rank, Reason.CRASH, death.wall_ns, text)


def _is_of_an_end(error: KernelError, evidence: PostMortem) -> bool:
    """Whether an error of a GPU is of a stalled process that was ended from outside, with kernels on the device."""
    users = [state for rank in error.ranks if (state := evidence.ranks.get(rank)) is not None]
    is_of_stalled = all(state.noticed_ns is not None and state.noticed_ns < error.wall_ns for state in users)
    return is_of_stalled and any(
        state.death is not None
        and state.death.signal in (signal.SIGKILL, *_ASKED_TO_END)
        and abs(state.death.wall_ns - error.wall_ns) <= _END_NS
        for state in users
    )


def _kind_of(text: str) -> Reason:
    if _OUT_OF_MEMORY.search(text):
        return Reason.MEMORY
    return Reason.KERNEL if _KERNEL_FAILURE.search(text) else Reason.CRASH


def _is_abort_of_library(state: RankState) -> bool:
    """Whether a library gave up, in a thread of its own or inside a collective."""
    spot = None if state.stack is None else locate(state.stack.frames)
    is_aborted = state.death is not None and state.death.signal == signal.SIGABRT
    return state.failure is None and is_aborted and (state.is_library_abort or (spot is not None and spot.waits))


def _name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) < 240 else f"{line[:237]}..."  # noqa: PLR2004 - a sentence of a report
