"""Typed tables between sources and analyzers: one NumPy column a field, integers for time.

A column of an optional value is a masked array: absent is neither 0 nor NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pandas as pd

    from perfscope.tables.gpus import GpuSamples
    from perfscope.tables.model import Model
    from perfscope.tables.saves import Saves

Int64: TypeAlias = npt.NDArray[np.int64]
Bool: TypeAlias = npt.NDArray[np.bool_]


#: Steps that make a median.
_FEW = 5


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """The training steps of one process, in order.

    Attributes:
        rank: The rank they belong to.
        attempt: 0 for the rank's first process in the run, 1 after a restart.
        step: Number of the training step, from 1.
        end_ns: When it completed, on the host's monotonic clock.
        wall_ns: Host time of the step; masked where its beginning was not seen.
        source: What told that a step completed.
        window: ``""``, ``"warmup"``, ``"profiled"`` or ``"export"``.
        skipped: The weights were not updated.
        micro_batches: Forward passes in the step; masked where unknown.
        samples: Samples this rank took in; masked where unknown.
        tokens: Tokens this rank took in; masked where unknown.
        global_samples: Samples over all ranks as the framework states them; masked where unknown.
        data_wait_ns: Time spent waiting for the data loader; masked where unknown.
        save_ns: How long checkpoint saves held training, which ``wall_ns`` leaves out; masked where none did.
        draining: An asynchronous checkpoint save was writing beside the step.
        hook_ns: Time that perfscope's hooks took; masked where it was not told.
        memory_peak_bytes: Peak device memory of tensors so far; masked where unknown.
    """

    rank: int
    attempt: int
    step: Int64
    end_ns: Int64
    wall_ns: np.ma.MaskedArray[Any, Any]
    source: npt.NDArray[np.str_]
    window: npt.NDArray[np.str_]
    skipped: Bool
    micro_batches: np.ma.MaskedArray[Any, Any]
    samples: np.ma.MaskedArray[Any, Any]
    tokens: np.ma.MaskedArray[Any, Any]
    global_samples: np.ma.MaskedArray[Any, Any]
    data_wait_ns: np.ma.MaskedArray[Any, Any]
    save_ns: np.ma.MaskedArray[Any, Any]
    draining: Bool
    hook_ns: np.ma.MaskedArray[Any, Any]
    memory_peak_bytes: np.ma.MaskedArray[Any, Any]

    def __len__(self) -> int:
        return len(self.step)

    @property
    def undisturbed(self) -> Bool:
        """The steps that neither start-up nor a window nor a checkpoint save disturbed, as a mask.

        Those beside an asynchronous save are among them where hardly any others are left: some jobs always save.
        """
        alone = (self.window == "") & (self.step > 1) & np.ma.getmaskarray(self.save_ns)
        quiet = alone & ~self.draining
        return np.asarray(quiet if quiet.sum() >= _FEW else alone, np.bool_)

    def frame(self) -> pd.DataFrame:
        """The table as a pandas DataFrame, with <NA> for what is absent."""
        return _frame(self)


@dataclass(frozen=True, slots=True)
class Window:
    """One profiler window of one rank: which training steps its trace holds, and what it cost.

    See ``perfscope.wire.WindowRecord``; what it did not tell is absent.
    """

    rank: int
    first_step: int
    last_step: int
    trace: str
    start_ns: int
    stop_ns: int
    export_ns: int
    trace_bytes: int
    partial: bool
    release_ns: int | None = None
    rss_before_bytes: int | None = None
    rss_after_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Rank:
    """Who a rank is: see ``perfscope.wire.RankRecord``.

    ``device_uuid`` is NVML's own name of the device, of a GPU or of a MIG instance, where NVML was sampled, and
    ``device_uuids`` are all that hold tensors of the process; ``visible_uuids`` are all devices that it could have
    used, None where that is not known.
    """

    rank: int
    attempt: int
    world_size: int
    host: str
    device_uuid: str | None
    device_uuids: tuple[str, ...]
    visible_uuids: tuple[str, ...] | None
    device_type: str | None
    device_name: str | None
    notes: tuple[str, ...]
    parallel: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PassTotal:
    """All passes of one kind on one virtual stage in a step: how many, and their time."""

    kind: str
    stage: int
    count: int
    time_ns: int


@dataclass(frozen=True, slots=True)
class MicroBatches:
    """The passes of micro-batches of one training step on one rank: see ``perfscope.wire.MicroBatchRecord``.

    Attributes:
        rank, attempt, step: Whose and which.
        device: The rank's place in the pipeline, and ``devices`` its length.
        stages: Virtual stages of the model.
        span_ns: From the beginning of the first pass to the end of the last one.
        totals: By kind and virtual stage.
        order: Each pass as ``F3.1``: kind, micro-batch, virtual stage.
    """

    rank: int
    attempt: int
    step: int
    device: int
    devices: int
    stages: int
    span_ns: int
    totals: tuple[PassTotal, ...]
    order: tuple[str, ...]

    @property
    def busy_ns(self) -> int:
        """Time of all passes."""
        return sum(total.time_ns for total in self.totals)


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Everything of a run but its traces.

    Attributes:
        path: The run's folder.
        command: The profiled command, without secrets; empty where run.json is missing.
        exit_status: How the command ended, in words; absent while it runs or where it was not seen.
        ranks: One entry a process that reported, by rank and attempt.
        steps: One table a process that completed a step.
        windows: Every finished window.
        damage: What could not be read, in words.
        gpus: The NVML samples of every GPU.
        gpu_notes: Why a host has none, in words.
        micro_batches: Passes of micro-batches, one entry a step and rank; empty without a pipeline.
        models: What each rank trains, of those that told it.
        saves: Checkpoint saves that the hooks timed; None where there was none.
    """

    path: str
    command: tuple[str, ...]
    exit_status: str | None
    ranks: tuple[Rank, ...]
    steps: tuple[Steps, ...]
    windows: tuple[Window, ...]
    damage: tuple[str, ...]
    gpus: tuple[GpuSamples, ...] = ()
    gpu_notes: tuple[str, ...] = ()
    micro_batches: tuple[MicroBatches, ...] = ()
    models: tuple[Model, ...] = ()
    saves: Saves | None = None


def _frame(table: Any) -> pd.DataFrame:  # noqa: ANN401 - any of the tables above
    import pandas as pd

    columns = {}
    for field in fields(table):
        value = getattr(table, field.name)
        if isinstance(value, np.ma.MaskedArray):
            columns[field.name] = pd.array(value.data, dtype="Int64")
            columns[field.name][np.ma.getmaskarray(value)] = pd.NA
        else:
            columns[field.name] = value
    return pd.DataFrame(columns)
