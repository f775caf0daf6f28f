"""One vocabulary of time: what a device did, why it was idle, what the life of a process and of a job went to.

- A device: ``Parts``, which are compute, exposed communication, exposed copy and idle. They add up to the window.
- Idle: ``CAUSES``, what the device waited for. They add up to the idle time. ``HOST_CAUSES`` are the host's.
- A host: ``HostPart``. They add up to a step.
- A process: ``LifePart``, which are start-up, steps, saves and the rest. They add up to its wall time.
- A job: ``Spent``, the parts of all its starts, with redone steps and the time between starts.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from perfscope.constants import NS_PER_MS, NS_PER_US
from perfscope.report import Cell, Column, percent, percent_of
from perfscope.result import Doc, Figures, InUnit, Sums, figure
from perfscope.tables.intervals import covered
from perfscope.tables.trace import DeviceEvents, Work

#: What the host did while the device waited for a launch; the last one where the trace does not show operators.
HOST_CAUSES = (
    "data_loading", "synchronisation", "cuda_call", "operator", "between_operators", "not_shown", "host_launch",
)  # fmt: skip
#: Why a device is idle, in the order of tables.
CAUSES = (*HOST_CAUSES, "launch_latency", "launch_gap", "dependency", "graph", "unknown")


class Labelled(StrEnum):
    """The value is a key in JSON, the label a name in tables."""

    label: str

    def __new__(cls, key: str, label: str) -> Self:
        """A member with its label."""
        member = str.__new__(cls, key)
        member._value_, member.label = key, label
        return member


class HostPart(Labelled):
    """A part of a step on the host."""

    COMPUTE = "compute", "Compute"
    EXCHANGE = "exchange", "Waits for ranks"
    DATA = "data", "Data"
    NO_PROCESSOR = "no_processor", "No processor"
    KERNEL = "kernel", "Kernel"
    GARBAGE = "garbage", "Garbage"
    BLOCKED = "blocked", "Blocked"
    SAVE = "save", "Saves"
    COMPILATION = "compilation", "Compilation"


class Spent(Labelled):
    """What the time of a job went to."""

    USEFUL = "useful_steps", "useful steps"
    REDONE = "redone_steps", "steps that were redone"
    SKIPPED = "skipped_steps", "steps that were skipped"
    START = "start_up", "start-up"
    COMPILATION = "compilation", "compilation"
    SAVES = "saves", "checkpoint saves"
    VALIDATION = "validation", "validation, generation"
    STALLS = "stalls", "stalls"
    PROFILING = "profiling", "profiler and hooks"
    END = "end", "after the last step"
    RESTARTS = "restarts", "restarts: end, start-up"
    DOWN = "down", "down between starts"


class LifePart(StrEnum):
    """A part of the wall time of a process; the value is its key in JSON."""

    label: str
    spent: Spent

    def __new__(cls, key: str, label: str, spent: Spent) -> LifePart:
        """A member with its name in tables, and what it is in the time of a job."""
        member = str.__new__(cls, key)
        member._value_, member.label, member.spent = key, label, spent
        return member

    IMPORTS = "imports", "start-up: Python and imports, until torch is loaded", Spent.START
    SET_UP = "set_up", "start-up: the script's set-up", Spent.START
    BEFORE_FIRST_STEP = "before_first_step", "start-up: until the first step", Spent.START
    FIRST_STEP = "first_step", "first step", Spent.USEFUL
    STEPS = "steps", "steps", Spent.USEFUL
    DATA_WAIT = "data_wait", "waiting for data", Spent.STALLS
    COMPILATION = "compilation", "compilation", Spent.COMPILATION
    VALIDATION = "validation", "validation", Spent.VALIDATION
    VALIDATION_WAIT = "validation_data_wait", "validation: waiting for data", Spent.VALIDATION
    GENERATION = "generation", "generation", Spent.VALIDATION
    SAVES = "saves", "checkpoint saves", Spent.SAVES
    BETWEEN = "between_steps", "between steps, unattributed", Spent.STALLS
    WINDOW_STEPS = "window_steps", "steps in profiler windows", Spent.USEFUL
    WINDOW_START = "window_start", "profiler windows: start", Spent.PROFILING
    WINDOW_STOP = "window_stop", "profiler windows: stop", Spent.PROFILING
    WINDOW_EXPORT = "window_export", "profiler windows: export", Spent.PROFILING
    HOOKS = "hooks", "hooks of perfscope", Spent.PROFILING
    END = "end", "after the last step", Spent.END


class Parts(Sums, frozen=True, array_like=True):
    """Where a window went: ``compute + exposed_communication + exposed_copy + idle = window`` exactly.

    The fields are nanoseconds.
    """

    window: int
    compute: int
    communication: int
    copy: int
    exposed_communication: int
    exposed_copy: int
    idle: int
    window_us = InUnit("window", NS_PER_US, "From the first to the last device event.")
    compute_us = InUnit("compute", NS_PER_US, "A compute kernel runs.")
    communication_us = InUnit("communication", NS_PER_US, "Communication runs, also beside compute.")
    copy_us = InUnit("copy", NS_PER_US, "A copy or a fill runs, also beside others.")
    exposed_communication_us = InUnit("exposed_communication", NS_PER_US, "Communication runs and no compute does.")
    exposed_copy_us = InUnit("exposed_copy", NS_PER_US, "A copy runs, and neither compute nor communication does.")
    idle_us = InUnit("idle", NS_PER_US, "Nothing runs.")

    @figure
    def overlap_fraction(self) -> float | None:
        """Share of ``communication_us`` during which compute runs; None without communication."""
        return (self.communication - self.exposed_communication) / self.communication if self.communication else None

    def cells(self) -> tuple[Cell, ...]:
        """The parts as cells of a table, below ``COLUMNS``."""
        parts = (self.compute, self.exposed_communication, self.exposed_copy, self.idle)
        return (
            self.window / NS_PER_MS,
            *(percent_of(part, self.window) for part in parts),
            self.communication / NS_PER_MS,
            percent(self.overlap_fraction),
        )


class DeviceStep(Figures, frozen=True, array_like=True):
    """Where one step went."""

    INLINE = ("parts",)
    name: Annotated[str, Doc("The step.")]
    parts: Parts
    host: int
    host_us = InUnit("host", NS_PER_US, "How long the host was in it.")


#: The columns of ``Parts.cells``.
COLUMNS = (
    Column("Window (ms)", 2),
    Column("Compute (%)"),
    Column("Exposed comm. (%)"),
    Column("Exposed copy (%)"),
    Column("Idle (%)"),
    Column("Comm. (ms)", 2),
    Column("Hidden comm. (%)"),
)


def split(events: DeviceEvents) -> Parts:
    """Where the window of some device events went, from the first start to the last end."""
    compute, communication, copies = (
        covered(events, events.is_work(*kinds))
        for kinds in ((Work.COMPUTE, Work.FUSED), (Work.COMMUNICATION, Work.FUSED), (Work.COPY,))
    )
    window = int(events.end_ns.max() - events.start_ns.min())
    busy = compute | communication
    return Parts(
        window=window,
        compute=compute.measure,
        communication=communication.measure,
        copy=copies.measure,
        exposed_communication=(communication - compute).measure,
        exposed_copy=(copies - busy).measure,
        idle=window - (busy | copies).measure,
    )
