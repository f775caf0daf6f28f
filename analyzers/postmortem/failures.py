"""Which failure came first: a rank that fails takes others with it, by their connections and by the launcher."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from perfscope.analyzers.postmortem.places import locate
from perfscope.constants import NS_PER_S
from perfscope.tables.postmortem import KernelError, PostMortem, RankState

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


class FailureKind(StrEnum):
    """What a process failed of."""

    CRASH = "crash"
    MEMORY = "out of memory"
    KERNEL = "kernel failure"


@dataclass(frozen=True, slots=True)
class FirstFailure:
    """The failure that others followed: its rank, kind, moment on the wall clock, and a sentence about it."""

    rank: int
    kind: FailureKind
    wall_ns: int
    text: str


def find_first_failure(evidence: PostMortem, *, with_libraries: bool = False) -> FirstFailure | None:
    """The first failure that is no consequence of another rank's; None where there is none.

    ``with_libraries`` counts the aborts of libraries, too, which give up where ranks disagree or one is lost.
    """
    stalls = [state.noticed_ns for state in evidence.ranks.values() if state.noticed_ns and not state.has_resumed]
    stalled_ns = min(stalls, default=None)
    failures = [
        failure
        for state in evidence.ranks.values()
        for failure in _failures_of(state, evidence)
        if with_libraries or not _is_abort_of_library(state)
        if stalled_ns is None or failure.wall_ns < stalled_ns or failure.kind is not FailureKind.CRASH
    ]
    return min(failures, key=lambda failure: failure.wall_ns, default=None)


def describe_unknown(evidence: PostMortem) -> str:
    """What is known where no rank can be named: whose process ended first."""
    ends = [(state.death.wall_ns, state) for state in evidence.ranks.values() if state.death and not state.has_ended]
    text = "what the ranks left behind does not tell which of them is to blame"
    if not ends:
        return text
    state = min(ends, key=lambda end: end[0])[1]
    death = state.death
    how = "how was not seen"
    if death is not None and death.signal is not None:
        how = f"by {_name(death.signal)}{', as launchers and people send it' if death.signal in _ASKED_TO_END else ''}"
    return f"{text}; the process of rank {state.rank} ended first, {how}"


def _failures_of(state: RankState, evidence: PostMortem) -> Iterator[FirstFailure]:
    death, failure = state.death, state.failure
    for error in evidence.kernel_errors:
        if state.rank in error.ranks and not _is_of_an_end(error, evidence):
            text = f"the driver reported Xid {error.xid} of GPU {error.uuid}"
            yield FirstFailure(state.rank, FailureKind.KERNEL, error.wall_ns, text)
    if failure is not None:
        text = f"{failure.error}: {failure.message}"
        kind = _kind_of(text)
        if kind is not FailureKind.CRASH or not _OF_OTHERS.search(text):
            yield FirstFailure(state.rank, kind, failure.wall_ns, _shorten(text))
        return
    if death is None:
        return
    if death.signal is not None and death.signal not in _ASKED_TO_END:
        if death.signal == signal.SIGKILL and death.memory_kills:
            text = "the kernel killed the process for want of host memory"
            yield FirstFailure(state.rank, FailureKind.MEMORY, death.wall_ns, text)
        else:
            yield FirstFailure(state.rank, FailureKind.CRASH, death.wall_ns, f"it was ended by {_name(death.signal)}")
    elif death.exit_code:
        text = f"it ended with exit code {death.exit_code}, without an exception that reached the interpreter"
        yield FirstFailure(state.rank, FailureKind.CRASH, death.wall_ns, text)


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


def _kind_of(text: str) -> FailureKind:
    if _OUT_OF_MEMORY.search(text):
        return FailureKind.MEMORY
    return FailureKind.KERNEL if _KERNEL_FAILURE.search(text) else FailureKind.CRASH


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
