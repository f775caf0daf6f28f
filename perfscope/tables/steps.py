"""The training steps of a run."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from perfscope.tables.columns import Bool, Int64, MaskedInt64, present, to_frame
from perfscope.wire.host import DeviceProbe

if TYPE_CHECKING:  # slow to import, and no command needs it
    import pandas as pd

#: Of fewer steady-state steps there is no figure.
FEWEST_STEPS = 5
#: In so many first steps caches and buffers fill, and torch.compile sees every shape.
FIRST_STEPS = 5
#: A step is slow from so many medians on.
SLOW = 1.5
#: What ranks wait for besides the kinds of ``ProcessSpans``.
FIRST_STEP, WINDOW = "first_step", "window"


class PeerStall(Struct, frozen=True):
    """A step in which a rank waited for what another rank did besides training.

    ``kind`` is a kind of ``ProcessSpans``, ``FIRST_STEP`` or ``WINDOW``; ``wait_ns`` is for how long of the step the
    other rank did that, and this one did not.
    """

    step: int
    rank: int
    kind: str
    wait_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class HostTimes:
    """What the thread that trains did in each step: see ``perfscope.wire.host``; masked where it was not counted.

    Where they were read for several steps at once, each has an estimate, see ``perfscope.sources.runs.step_columns``;
    the sums are what was counted.
    """

    cpu_ns: MaskedInt64
    delay_ns: MaskedInt64
    system_ns: MaskedInt64
    faults: MaskedInt64
    preempted: MaskedInt64
    launcher_delay_ns: MaskedInt64
    collectives_ns: MaskedInt64
    transfers_ns: MaskedInt64


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """The training steps of one process, in order; masked is unknown, or that there was none.

    See ``perfscope.wire.records.StepRecord`` for columns that are not described here.

    Attributes:
        attempt: 0 for the rank's first process in the run, 1 after a restart.
        window: ``""``, ``"warmup"``, ``"profiled"`` or ``"export"``.
        stalled_elsewhere: This step waited for what another rank did besides training; see ``peer_stalls``.
        no_grad_ns: Time of validation and generation, which ``wall_ns`` leaves out; masked also where most steps have
            some: then it is a part of the step.
        compile_ns, garbage_ns: Time of torch.compile, and of full collections of Python's garbage; parts of
            ``wall_ns``.
        host: What the host did; absent where the run did not record it.
        probes: Steps that were timed on the device.
        peer_stalls: The steps in which it waited for another rank. Those for its collection of garbage are not among
            ``stalled_elsewhere``: it is a part of steps.
    """

    rank: int
    attempt: int
    step: Int64
    end_ns: Int64
    wall_ns: MaskedInt64
    source: npt.NDArray[np.str_]
    window: npt.NDArray[np.str_]
    skipped: Bool
    micro_batches: MaskedInt64
    samples: MaskedInt64
    tokens: MaskedInt64
    global_samples: MaskedInt64
    data_wait_ns: MaskedInt64
    save_ns: MaskedInt64
    draining: Bool
    stalled_elsewhere: Bool
    no_grad_ns: MaskedInt64
    gap_ns: MaskedInt64
    compile_ns: MaskedInt64
    garbage_ns: MaskedInt64
    hook_ns: MaskedInt64
    memory_peak_bytes: MaskedInt64
    alloc_retries: MaskedInt64
    device_allocs: MaskedInt64
    host: HostTimes | None = None
    probes: tuple[DeviceProbe, ...] = ()
    iteration: MaskedInt64 | None = None
    peer_stalls: tuple[PeerStall, ...] = ()

    def __len__(self) -> int:
        return len(self.step)

    @property
    def is_unstalled(self) -> Bool:
        """Which steps no start-up, window, checkpoint save or validation affected."""
        is_stalled = present(self.save_ns) | self.stalled_elsewhere | present(self.no_grad_ns)
        return np.asarray((self.window == "") & (self.step > 1) & ~is_stalled, np.bool_)

    @property
    def is_alone(self) -> Bool:
        """Which of these steps ran beside no asynchronous save, and without a compilation."""
        return np.asarray(self.is_unstalled & ~self.draining & ~present(self.compile_ns), np.bool_)

    @property
    def steady(self) -> Bool:
        """The steady-state steps of this process: of those alone, or where these are hardly any, all unstalled ones.

        Some jobs always save. For figures of a run see ``perfscope.measures.step_selection``.
        """
        return self.is_alone if self.is_alone.sum() >= FEWEST_STEPS else self.is_unstalled

    @property
    def begin_ns(self) -> MaskedInt64:
        """When each step began: at the end of the hook at the boundary before it; masked where that is unknown."""
        stalls_ns = np.ma.filled(self.save_ns, 0) + np.ma.filled(self.no_grad_ns, 0)
        return np.ma.MaskedArray(self.end_ns - self.wall_ns.data - stalls_ns, mask=np.ma.getmaskarray(self.wall_ns))

    def frame(self) -> pd.DataFrame:
        """The table as a pandas DataFrame, with <NA> for what is absent."""
        columns = {column.name: getattr(self, column.name) for column in fields(self)}
        del columns["host"], columns["probes"], columns["peer_stalls"]
        host = {} if self.host is None else {name.name: getattr(self.host, name.name) for name in fields(self.host)}
        return to_frame({**columns, **host})
