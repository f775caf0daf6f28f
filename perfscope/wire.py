"""Names and records of the files of a run: what hooks write and sources read.

Every record is one line of JSON that is written at once, so that a run that is killed leaves whole lines. A field that
is unknown is left out; readers must not expect an end record. The layout::

    RUN/run.json                     the command, its environment without secrets, versions, the outcome
    RUN/ranks/00000/rank.json        who the rank is: host, process, device, clock
    RUN/ranks/00000/parallel.json    its coordinates in the process groups, where the framework tells them
    RUN/ranks/00000/model.json       what it trains: shapes of parameters, types, what the model was built from
    RUN/ranks/00000/steps.jsonl      one StepRecord a training step
    RUN/ranks/00000/events.jsonl     one WindowRecord or NoteRecord as it happens
    RUN/ranks/00000/micro_batches.jsonl   one MicroBatchRecord a training step, where there is a pipeline
    RUN/ranks/00000/checkpoints.jsonl    one CheckpointRecord a save, where a hook timed it
    RUN/traces/HOST_PID.NS.pt.trace.json[.gz]
    RUN/nvml/HOST.jsonl              samples of every GPU of a node; see hooks/nvml/sampler.py
    RUN/hosts/HOST.json              each host's run.json, and
    RUN/collected.json               the parts, where `perfscope collect` brought the run together

A rank that starts again in the same run (an elastic restart) writes to ``ranks/00000.1`` and so on.
This module is imported inside training jobs: standard library only.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

SCHEMA = "perfscope/run/1"

RUN_FILE = "run.json"
RANKS = "ranks"
RANK_FILE = "rank.json"
PARALLEL_FILE = "parallel.json"
MODEL_FILE = "model.json"
STEPS_FILE = "steps.jsonl"
EVENTS_FILE = "events.jsonl"
MICRO_BATCHES_FILE = "micro_batches.jsonl"
CHECKPOINTS_FILE = "checkpoints.jsonl"
TRACES = "traces"
NVML = "nvml"
HOSTS = "hosts"
COLLECTED_FILE = "collected.json"
BOOT = ".boot"
TRACE_SUFFIX = ".pt.trace.json"

#: The key of our metadata inside a trace file.
TRACE_METADATA = "perfscope"

#: How a step relates to a profiler window.
WARMUP = "warmup"
PROFILED = "profiled"
EXPORT = "export"


#: How the name of a range around a pass of a micro-batch begins.
PASS_RANGE = "perfscope: "
#: Kinds of passes in records, and how the ranges of a trace spell them.
PASS_KINDS = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}
_PASS_RANGE = re.compile(rf"{PASS_RANGE}({'|'.join(PASS_KINDS.values())}) (\d+) stage (\d+) device (\d+) of (\d+)")


class PassRange(NamedTuple):
    """The range around a pass of a micro-batch in a trace.

    Attributes:
        kind: A key of ``PASS_KINDS``.
        microbatch: Which micro-batch, from 0.
        stage: Its virtual stage.
        device: The rank's position in the pipeline, and ``devices`` its length.
    """

    kind: str
    microbatch: int
    stage: int
    device: int
    devices: int

    @property
    def name(self) -> str:
        """The name of the range.

        >>> PassRange("I", 3, 5, 1, 4).name
        'perfscope: input gradient 3 stage 5 device 1 of 4'
        """
        words = f"{PASS_KINDS[self.kind]} {self.microbatch} stage {self.stage} device {self.device} of {self.devices}"
        return PASS_RANGE + words


def parse_pass_range(name: str) -> PassRange | None:
    """Read the name of a range; None for a name that is not that of a pass.

    >>> parse_pass_range("perfscope: forward 3 stage 5 device 1 of 4").microbatch
    3
    """
    match = _PASS_RANGE.fullmatch(name)
    if match is None:
        return None
    kind = next(kind for kind, words in PASS_KINDS.items() if words == match[1])
    return PassRange(kind, *(int(number) for number in match.groups()[1:]))


def rank_folder(rank: int, attempt: int = 0) -> str:
    """Name the folder of a rank's n-th process.

    >>> rank_folder(3), rank_folder(3, 1)
    ('00003', '00003.1')
    """
    return f"{rank:05d}" if attempt == 0 else f"{rank:05d}.{attempt}"


@dataclass(frozen=True)
class StepRecord:
    """One completed training step of one rank.

    Attributes:
        step: The number of the training step, from 1.
        end_ns: When it completed, on the host's monotonic clock.
        wall_ns: Host time since the boundary before it, without exports, without ``save_ns`` and without the boundary's
            own hook; absent where that boundary was not seen.
        source: What told that the step completed: ``deepspeed``, ``optimizer`` and so on.
        window: ``warmup``, ``profiled`` or ``export`` (the step after a window); absent for an undisturbed step.
        skipped: True where the framework counted the step but did not update the weights.
        micro_batches: Forward passes of the wrapped model in the step.
        samples: Samples that this rank took in.
        tokens: Tokens that this rank took in, where the input is integers of two dimensions.
        global_samples: Samples of the step over all ranks, where the framework states it.
        data_wait_ns: Time spent waiting for the data loader.
        save_ns: How long checkpoint saves held training in the step; absent where none did.
        draining: True where an asynchronous checkpoint save was writing beside the step.
        hook_ns: Time that perfscope's hooks took in the step and at the boundary before it, windows excluded.
        loss_scale: The loss scale, where it is known without a synchronisation.
        iteration: The framework's own number of the step: a resumed run goes on counting where it was saved.
        memory_peak_bytes: Largest memory of one device allocated by tensors since the process started.
        memory_reserved_bytes: Largest memory of one device held by the allocator since the process started.
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
    hook_ns: int | None = None
    loss_scale: float | None = None
    iteration: int | None = None
    memory_peak_bytes: int | None = None
    memory_reserved_bytes: int | None = None


@dataclass(frozen=True)
class WindowRecord:
    """One profiler window of one rank, written when its trace lies complete on disk.

    Attributes:
        first_step: The first profiled training step.
        last_step: The last one; the window is partial where fewer steps came.
        trace: The file's name in ``RUN/traces``.
        start_ns: How long starting the profiler held the training process.
        stop_ns: How long stopping the profiler held the training process.
        export_ns: How long writing the trace held it.
        trace_bytes: Size of the trace before compression.
        partial: True where training ended inside the window.
        release_ns: How long giving the trace's memory back and starting to compress it held it.
        rss_before_bytes: Memory of the process in use before the profiler was started.
        rss_after_bytes: And after the trace was written.
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
    kind: str = "window"


@dataclass(frozen=True)
class MicroBatchRecord:
    """The passes of micro-batches of one training step on one rank of a pipeline.

    Attributes:
        step: The number of the training step.
        device: The rank's place in the pipeline, and ``devices`` its length.
        stages: Virtual stages of the model.
        span_ns: From the beginning of the first pass to the end of the last one.
        totals: For each kind of pass (``F``, ``B``, or ``I`` and ``W``) and virtual stage: how many, and their time.
        order: Each pass as ``F3.1``: kind, micro-batch, virtual stage; absent where it is that of the record before.
        times_ns: Beginning and length of each pass of ``order``; absent with it.
    """

    step: int
    device: int
    devices: int
    stages: int
    span_ns: int
    totals: tuple[tuple[str, int, int, int], ...]
    order: tuple[str, ...] | None = None
    times_ns: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True)
class NoteRecord:
    """Something a reader of the report must know: a feature that is off, a hook that failed."""

    text: str
    kind: str = "note"


@dataclass(frozen=True)
class CheckpointRecord:
    """One checkpoint save of one rank.

    Attributes:
        start_ns: When it began to hold training, on the host's monotonic clock.
        end_ns: When training could go on.
        source: What was timed: ``deepspeed``, ``megatron``, ``torch.save``, ``dcp``.
        step: The training step after which it was saved.
        path: Where to.
        size_bytes: What this process wrote, as far as its writers tell it; absent where none did.
        asynchronous: True where writing goes on beside training.
        drained_ns: When an asynchronous save lay on disk.
    """

    start_ns: int
    end_ns: int
    source: str
    step: int | None = None
    path: str | None = None
    size_bytes: int | None = None
    asynchronous: bool | None = None
    drained_ns: int | None = None


@dataclass(frozen=True)
class RankRecord:
    """Who a rank is.

    Attributes:
        rank: Its number.
        world_size: How many ranks there are.
        host: Its machine.
        pid: Its process.
        wall_ns: The wall clock, read together with ``monotonic_ns``: the pair aligns clocks.
        monotonic_ns: The monotonic clock of ``StepRecord.end_ns``.
        python: Version of Python.
        torch: Version of torch.
        device_type: ``cuda``, ``cpu`` and so on.
        device_name: What the device calls itself.
        device_uuid: The device's UUID, which NVML knows too.
        device_uuids: Those of all devices that hold tensors of the process, where there are several.
        device_index: The device's number among those that the process sees.
        visible_devices: CUDA_VISIBLE_DEVICES, where it is set.
        device_order: CUDA_DEVICE_ORDER, where it is set.
        deepspeed: Version of DeepSpeed, where it is loaded.
        argv: The command line of the process, without secrets.
        run_id: The id that ``perfscope profile`` gave the run.
        rendezvous: Where the ranks met, ``HOST:PORT``, where the launcher told it.
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


@dataclass(frozen=True)
class WeightRecord:
    """Parameters of one shape whose names differ by a number alone.

    Attributes:
        name: The name with ``*`` for the number; empty where it is not known.
        owner: Class of the module that holds them, ``Embedding`` for every kind of embedding; empty where not known.
        shape: The whole shape, also where it is sharded over data-parallel ranks.
        dtype: ``bf16``, ``fp16``, ``fp32``, ``fp8``, or torch's own name of another type.
        trainable: Whether they have gradients.
        count: How many there are.
    """

    name: str
    owner: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool
    count: int


@dataclass(frozen=True)
class ModelRecord:
    """What a rank trains, from which its operations are computed; one a rank, written when the first step completed.

    Attributes:
        parameters: Parameters of this rank's module, each once.
        trainable: Those that have gradients.
        weights: Their shapes.
        module: Class of the module; absent where only its parameters are known.
        config: Plain values of what the module was built from, by the framework's own names.
        dtype: Type of most parameters.
        compute_dtype: Type that matrix products are computed in, where it is another one.
        checkpointing: ``full`` or ``selective`` where it was seen; absent where nothing was seen.
        zero_stage: Stage of ZeRO: DeepSpeed's, or 3 with PyTorch's FSDP; absent where neither was seen.
        optimizer: Class of the optimizer that was seen to step first; absent where none was.
    """

    parameters: int
    trainable: int
    weights: tuple[WeightRecord, ...]
    module: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    dtype: str | None = None
    compute_dtype: str | None = None
    checkpointing: str | None = None
    zero_stage: int | None = None
    optimizer: str | None = None


#: Made once, and without copying every record: this runs at each step of a training.
_LINES = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=asdict)


def to_line(
    record: StepRecord | WindowRecord | MicroBatchRecord | NoteRecord | CheckpointRecord | RankRecord | ModelRecord,
) -> bytes:
    """Write a record as one line, without the fields that are unknown."""
    known = {name: value for name, value in vars(record).items() if value is not None}
    return _LINES.encode(known).encode() + b"\n"


def to_file(value: dict[str, Any]) -> bytes:
    """Write a whole JSON file's content."""
    return json.dumps(value, indent=2, allow_nan=False).encode() + b"\n"
