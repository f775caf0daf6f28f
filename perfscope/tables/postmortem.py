"""What is known of the ranks of a training that stalled or failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from perfscope.wire.incidents import CodeFrame


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """One collective, or one send or receive, of one rank, as torch's Flight Recorder remembers it.

    Attributes:
        group: The name of its process group, the same on all members.
        sequence: Its number in the group, the same on all members; sends and receives have numbers of their own.
        operation: ``all_reduce``, ``send 0->1`` and so on, without the backend.
        created_ns: When it was called, on the host's wall clock.
        is_started: Whether the device began it; None where that is not recorded, as for gloo.
        frames: Where it was called, the innermost call first.
    """

    group: str
    sequence: int
    is_p2p: bool
    operation: str
    input_sizes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    created_ns: int
    is_started: bool | None
    is_completed: bool
    frames: tuple[CodeFrame, ...] = ()


@dataclass(frozen=True, slots=True)
class RecorderDump:
    """The collectives that one rank remembers, the oldest first, and the members of its groups where they are known."""

    calls: tuple[CollectiveCall, ...]
    members: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """What a thread is doing, the innermost call first."""

    thread: str
    frames: tuple[CodeFrame, ...]


@dataclass(frozen=True, slots=True)
class Failure:
    """The exception that ended a process, when the interpreter ended, and its traceback, the innermost call first."""

    error: str
    message: str
    wall_ns: int
    frames: tuple[CodeFrame, ...] = ()


@dataclass(frozen=True, slots=True)
class Death:
    """How a process ended, and when on its host's wall clock; both are None where that was not seen in time."""

    wall_ns: int
    exit_code: int | None = None
    signal: int | None = None
    memory_kills: int | None = None


@dataclass(frozen=True, slots=True)
class RankState:
    """The last that is known of one rank.

    Attributes:
        host: Empty where only a dump is known.
        step: Training steps that it completed; None where that is not known.
        stack: What its training thread was doing at the stall or the end; None where that is not known.
        source_text: The code of the innermost line of that stack, as it was then.
        is_library_abort: Whether a thread of a library, which is none of Python's, ended the process.
        stalled_ns: For how long it had completed no step when the stall was noticed; None where it noticed none.
        noticed_ns: When that was, on its host's wall clock.
        has_ended: Whether its interpreter ended by itself.
    """

    rank: int
    host: str = ""
    step: int | None = None
    dump: RecorderDump | None = None
    stack: ThreadStack | None = None
    source_text: str = ""
    is_library_abort: bool = False
    stalled_ns: int | None = None
    noticed_ns: int | None = None
    has_resumed: bool = False
    failure: Failure | None = None
    death: Death | None = None
    has_ended: bool = False


@dataclass(frozen=True, slots=True)
class KernelError:
    """An error that the driver reported of a GPU: its number (Xid), and the ranks that use the GPU."""

    uuid: str
    xid: int
    wall_ns: int
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PostMortem:
    """All that is kept of a training that stalled or failed, by its run or folder of dumps.

    ``exit_status`` is how the command ended, in words; None where it was not seen.
    """

    source: str
    ranks: Mapping[int, RankState]
    world_size: int
    kernel_errors: tuple[KernelError, ...] = ()
    exit_status: str | None = None
    damage: tuple[str, ...] = field(default=())
