"""Where a window of a device went: the parts that add up to it, and how they are measured."""

from __future__ import annotations

from typing import Annotated

from perfscope.analyzers.shared.intervals import covered
from perfscope.constants import NS_PER_MS, NS_PER_US
from perfscope.report import Cell, Column, percent, percent_of
from perfscope.result import Doc, Figures, InUnit, figure
from perfscope.tables.trace import DeviceEvents, Work


class Parts(Figures, frozen=True, array_like=True):
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

    def __add__(self, addend: Parts) -> Parts:
        # Field by field: many ranks have many steps, and to walk over the names of the fields takes five times as long.
        return Parts(
            self.window + addend.window,
            self.compute + addend.compute,
            self.communication + addend.communication,
            self.copy + addend.copy,
            self.exposed_communication + addend.exposed_communication,
            self.exposed_copy + addend.exposed_copy,
            self.idle + addend.idle,
        )

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


class StepParts(Figures, frozen=True, array_like=True):
    """Where one step went.

    Attributes:
        parts: Its time on the device.
        host: How long the host was in it, in nanoseconds.
    """

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
    """Where the window of some device events went; their window is from the first start to the last end."""
    compute, communication, copies = (
        covered(events, events.is_work(*kinds))
        for kinds in ((Work.COMPUTE, Work.FUSED), (Work.COMMUNICATION, Work.FUSED), (Work.COPY,))
    )
    window = int(events.end_ns.max() - events.start_ns.min())
    exposed_communication = (communication - compute).measure
    busy = compute | communication
    exposed_copy = (copies - busy).measure
    return Parts(
        window=window,
        compute=compute.measure,
        communication=communication.measure,
        copy=copies.measure,
        exposed_communication=exposed_communication,
        exposed_copy=exposed_copy,
        idle=window - (busy | copies).measure,
    )
