"""The records of a run's files, each of them one line of JSON: see ``perfscope.wire`` for where they are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, NamedTuple

from perfscope.wire.host import DeviceProbe, HostWork

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class Span(NamedTuple):
    """A stretch of a process's time that is not a training step's own work, on the host's monotonic clock.

    ``wait_ns`` of it the process waited for data loaders. The kinds are in ``perfscope.wire``.
    """

    kind: str
    start_ns: int
    end_ns: int
    wait_ns: int = 0


@dataclass(frozen=True)
class StepRecord:
    """One completed training step of one rank.

    Attributes:
        step: Its number, from 1.
        end_ns: When it completed, on the host's monotonic clock.
        wall_ns: Host time since the previous step boundary, without exports, ``save_ns``, ``no_grad_ns`` and the hook
            at the boundary itself; absent where that boundary was not seen.
        source: What marks the step boundary: ``deepspeed``, ``optimizer`` and so on.
        window: ``warmup``, ``profiled`` or ``export`` (the step after a window); absent outside windows.
        skipped: True where the framework counted the step but did not update the weights.
        micro_batches: Forward passes of the wrapped model in the step.
        samples: Those that this rank processed.
        tokens: Tokens that this rank processed, where the input is integers of two dimensions: of a sequence that
            context-parallel ranks share, its part.
        global_samples: Samples of the step over all ranks, where the framework reports them.
        data_wait_ns: Time spent waiting for the data loader.
        save_ns: How long checkpoint saves blocked training in the step; absent where none did.
        draining: True where an asynchronous checkpoint save was still being written during the step.
        no_grad_ns: Time of validation and generation in the step, without saves inside; absent where there was none.
        gap_ns: From the end of the hook at the previous boundary to the first sign of the step: a request for a batch,
            or a forward pass with gradients.
        spans: Those that ended in the step, in this order.
        hook_ns: Time that perfscope's hooks took in the step and at the boundary before it, windows excluded, and the
            processor's time for the writing of records meanwhile.
        loss_scale: Where it can be read without a synchronisation.
        iteration: The framework's own number of the step; a resumed run goes on counting from its checkpoint.
        memory_peak_bytes: Largest memory of one device allocated by tensors since the process started; read in the
            first steps and then every half to two seconds.
        boundaries: Step boundaries that the step holds where several optimizers take turns; absent where it is one.
        alloc_retries: How often the allocator of a device had to free its cache and try again since the process
            started; read with the peaks.
        device_allocs: How often it asked the device for memory (cudaMalloc); read likewise.
        probe: Times of an earlier step on the device.
        host: What the thread that trains did; absent where it was not read, and where the kernel counts nothing.
        launcher_delay_ns: Time of the thread that launches backward passes on a device in the run queue, over the steps
            of ``host``.
        waits: How long it waited for other ranks, as in ``HostWaits``; earlier versions add those by process group.
            Absent on GPUs, where the device waits.
    """

    step: int
    end_ns: int
    source: str
    wall_ns: int | None = None
    window: str | None = None
    skipped: bool | None = None
    micro_batches: int | None = None
    samples: int | None = None
    tokens: int | None = None
    global_samples: int | None = None
    data_wait_ns: int | None = None
    save_ns: int | None = None
    draining: bool | None = None
    no_grad_ns: int | None = None
    gap_ns: int | None = None
    spans: tuple[Span, ...] | None = None
    hook_ns: int | None = None
    loss_scale: float | None = None
    iteration: int | None = None
    memory_peak_bytes: int | None = None
    boundaries: int | None = None
    alloc_retries: int | None = None
    device_allocs: int | None = None
    probe: DeviceProbe | None = None
    host: HostWork | None = None
    launcher_delay_ns: int | None = None
    waits: tuple[int, ...] | None = None


@dataclass(frozen=True)
class WindowRecord:
    """One profiler window of one rank, written when its trace is complete on disk.

    Attributes:
        trace: The file's path in ``RUN/traces``.
        start_ns, stop_ns, export_ns: How long the profiler's start and stop and the trace's writing blocked training.
        trace_bytes: Size of the trace before compression.
        partial: True where training ended inside the window.
        release_ns: How long releasing the trace's memory and starting its compression blocked it.
        rss_before_bytes, rss_after_bytes: Resident memory of the process before the profiler was started, and after the
            trace was written.
        activities: ``operators`` or ``light``; absent in runs that were made before there were light windows.
        detached: Whether CUPTI, which slows every launch of a kernel, was detached from the process at the end of the
            window; absent where the process uses no CUDA device.
        attached_because: Why it was not.
    """

    first_step: int
    last_step: int
    trace: str
    start_ns: int
    stop_ns: int
    export_ns: int
    trace_bytes: int
    partial: bool = False
    release_ns: int | None = None
    rss_before_bytes: int | None = None
    rss_after_bytes: int | None = None
    activities: str | None = None
    detached: bool | None = None
    attached_because: str | None = None
    kind: str = "window"


@dataclass(frozen=True)
class NoteRecord:
    """Something that a reader of the report must know: a feature that is off, a hook that failed."""

    text: str
    kind: str = "note"


@dataclass(frozen=True)
class EndRecord:
    """When a process ended by itself, on the host's monotonic clock, and the spans that ended after its last step."""

    end_ns: int
    spans: tuple[Span, ...] | None = None
    kind: str = "end"


@dataclass(frozen=True)
class CheckpointRecord:
    """One outermost call of one rank that saved a checkpoint or a part of one.

    Attributes:
        start_ns: When it began to block training, on the host's monotonic clock; at ``end_ns`` training could go on.
        source: What was timed: ``deepspeed``, ``megatron``, ``torch.save``, ``dcp`` and so on.
        step: The training step after which it was saved.
        path: A file or a folder.
        size_bytes: Bytes that this process wrote, as far as its writers report them; absent where one does not.
        drained_ns: When an asynchronous save was complete on disk.
        files: Path and size of each file that this process wrote, as far as its writers name them. Empty where it
            certainly wrote none; absent where unknown, or where there are very many.
        file_count: How many files it wrote; absent where unknown.
        waits: Intervals in which training waited for the end of an asynchronous save, later than ``end_ns``.
    """

    start_ns: int
    end_ns: int
    source: str
    step: int | None = None
    path: str | None = None
    size_bytes: int | None = None
    asynchronous: bool | None = None
    drained_ns: int | None = None
    files: tuple[tuple[str, int | None], ...] | None = None
    file_count: int | None = None
    waits: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True)
class RankRecord:
    """Who a rank is.

    Attributes:
        wall_ns, monotonic_ns: Both clocks, read together, to align those of hosts; steps end on the monotonic clock.
        python, torch, deepspeed: Versions, of what is loaded.
        device_type: ``cuda``, ``cpu`` and so on; ``device_name`` is the product.
        device_uuid: The device's UUID, as NVML reports it, too.
        device_uuids: UUIDs of all devices that hold tensors of the process, where there are several.
        device_index: The device's number among those that the process sees.
        visible_devices, device_order: CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER, where they are set.
        argv: The command line of the process, without secrets.
        run_id: The id that ``perfscope profile`` gave the run.
        rendezvous: Address at which the ranks met, ``HOST:PORT``, where the launcher reports it.
        started_ns: When the process was started, on the monotonic clock, to the system's clock tick of 10 ms.
        torch_loaded_ns: When torch was imported; absent where the capture was not there yet.
        hooked_ns: When training first called a hook: a process group, an engine, an optimizer or a loader is in use.
    """

    rank: int
    world_size: int
    host: str
    pid: int
    wall_ns: int
    monotonic_ns: int
    python: str
    torch: str | None = None
    device_type: str | None = None
    device_name: str | None = None
    device_uuid: str | None = None
    device_uuids: tuple[str, ...] | None = None
    device_index: int | None = None
    visible_devices: str | None = None
    device_order: str | None = None
    deepspeed: str | None = None
    argv: tuple[str, ...] = ()
    run_id: str | None = None
    rendezvous: str | None = None
    started_ns: int | None = None
    torch_loaded_ns: int | None = None
    hooked_ns: int | None = None


#: One encoder for all records, because it is used at each step of a training.
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=asdict)


def to_line(record: DataclassInstance) -> bytes:
    """Encode a record as one line, without the fields that are unknown."""
    return to_json_line(vars(record))


def to_json_line(fields: Mapping[str, object]) -> bytes:
    """Encode fields as one line, without those that are None. Raises ValueError: a number is not finite."""
    return _ENCODER.encode({name: value for name, value in fields.items() if value is not None}).encode() + b"\n"


def to_file(document: Mapping[str, object]) -> bytes:
    """Encode a JSON file."""
    return json.dumps(document, indent=2, allow_nan=False).encode() + b"\n"
