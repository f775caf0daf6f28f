"""A run's folder as a Run: step records, windows and rank facts of every process that reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from perfscope import wire
from perfscope.errors import SourceError
from perfscope.sources.memory.recorded import find_histories, read_histories
from perfscope.sources.runs.folder import is_run
from perfscope.sources.runs.micro_batches import read_micro_batches
from perfscope.sources.runs.model_record import read_model_record
from perfscope.sources.runs.nvml import read_gpus
from perfscope.sources.runs.objects import read_object, recorded_options
from perfscope.sources.runs.peer_stalls import find_peer_stalls
from perfscope.sources.runs.records import decode_event, read_rank_record, read_records
from perfscope.sources.runs.save_records import ProcessSaves, read_process_saves, to_saves
from perfscope.sources.runs.setup_record import read_setup
from perfscope.sources.runs.step_columns import read_step_columns
from perfscope.sources.runs.step_records import to_steps
from perfscope.sources.runs.timeline import to_timeline
from perfscope.sources.runs.visible_devices import find_device, find_devices, list_visible_devices
from perfscope.tables.gpus import GpuSamples
from perfscope.tables.memory import AllocatorHistory
from perfscope.tables.micro_batches import MicroBatches
from perfscope.tables.model import Model
from perfscope.tables.run import Rank, Run, Window
from perfscope.tables.steps import Steps
from perfscope.tables.timeline import Timeline
from perfscope.units import format_ranges
from perfscope.wire.records import NoteRecord, WindowRecord
from perfscope.wire.setup import SetupRecord

_ReadSamples: TypeAlias = Callable[[Path, list[str]], tuple[tuple[GpuSamples, ...], tuple[str, ...]]]
_MOST_RANGES_SHOWN = 16
#: What torch reads the setting of its allocator from.
_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
#: A window is written as its first and its last step.
_EDGES = 2
_NO_RANKS = (
    "no training process reported: either none imported torch and reached a step, or the launcher dropped PYTHONPATH "
    "or started Python with -I, -E or -S"
)


@dataclass(frozen=True, slots=True)
class _Process:
    """What one process of a rank wrote.

    Attributes:
        number: Its rank's number.
        rank: Its rank; None where ``rank.json`` cannot be read.
        steps: Its steps; None where it completed none.
        windows: Its finished windows.
        micro_batches: The passes of its micro-batches.
        timeline: Its life; None where it completed no step.
        model: Its model; None where it recorded none.
        saves: Its checkpoint saves.
        setup: How it trains; None where that was not recorded.
    """

    number: int
    rank: Rank | None
    steps: Steps | None
    windows: tuple[Window, ...]
    micro_batches: tuple[MicroBatches, ...]
    timeline: Timeline | None
    model: Model | None
    saves: ProcessSaves
    setup: SetupRecord | None


def read_run(path: Path) -> Run:
    """Read a run's folder, traces excepted.

    Raises:
        SourceError: The folder is no run.
    """
    return _read(path, read_gpus)


def read_run_without_samples(path: Path) -> Run:
    """Read a run's folder, traces and the samples of GPUs excepted: a week has a million of these.

    Raises:
        SourceError: The folder is no run.
    """
    return _read(path, _read_no_gpus)


def _read_no_gpus(_path: Path, _damage: list[str]) -> tuple[tuple[GpuSamples, ...], tuple[str, ...]]:
    return (), ()


def _read(path: Path, read_samples: _ReadSamples) -> Run:
    if not is_run(path):
        raise SourceError(path, "is not a run of `perfscope profile`", hint="it has neither run.json nor ranks/")
    damage: list[str] = []
    facts = read_object(path / wire.RUN_FILE, damage)
    gpus, gpu_notes = read_samples(path, damage)
    processes = [
        _read_process(folder, rank, attempt, gpus, damage)
        for folder, rank, attempt in _rank_folders(path / wire.RANKS_FOLDER)
    ]
    ranks = tuple(process.rank for process in processes if process.rank is not None)
    steps = tuple(process.steps for process in processes if process.steps is not None)
    timelines = tuple(process.timeline for process in processes if process.timeline is not None)
    damage += _missing_ranks(ranks)
    return Run(
        path=str(path),
        command=_command(facts),
        exit_status=_exit_status(facts),
        ranks=ranks,
        steps=find_peer_stalls(steps, timelines),
        windows=tuple(window for process in processes for window in process.windows),
        damage=tuple(damage),
        gpus=gpus,
        gpu_notes=gpu_notes,
        micro_batches=tuple(passes for process in processes for passes in process.micro_batches),
        models=tuple(process.model for process in processes if process.model is not None),
        saves=to_saves([process.saves for process in processes], steps),
        planned_windows=_planned_windows(facts),
        allocator=_allocator(facts),
        recorded=recorded_options(facts),
        timelines=timelines,
        read_memory=partial(_read_memory, path),
        setups={process.number: process.setup for process in processes if process.setup is not None},
    )


def _read_memory(run: Path) -> tuple[AllocatorHistory, ...]:
    return tuple(history for path in find_histories(run) for history in read_histories(path))


def _command(facts: Mapping[str, object]) -> tuple[str, ...]:
    words = facts.get("command")
    return tuple(str(word) for word in words) if isinstance(words, list) else ()


def _planned_windows(facts: Mapping[str, object]) -> tuple[tuple[int, int], ...]:
    """The windows that were asked for, such as ``[[4, 6]]``; none where the run does not say."""
    windows = facts.get("windows")
    pairs = [tuple(pair) for pair in windows if isinstance(pair, list)] if isinstance(windows, list) else []
    return tuple(pair for pair in pairs if len(pair) == _EDGES and all(isinstance(edge, int) for edge in pair))


def _allocator(facts: Mapping[str, object]) -> str:
    variables = facts.get("environment")
    values = [variables.get(name) for name in _ALLOCATOR] if isinstance(variables, dict) else []
    return ",".join(value for value in values if isinstance(value, str))


def _exit_status(facts: Mapping[str, object]) -> str | None:
    status = facts.get("exit_status")
    return status if isinstance(status, str) else None


def _missing_ranks(ranks: Sequence[Rank]) -> list[str]:
    """The ranks that never reported, in words."""
    if not ranks:
        return [_NO_RANKS]
    world_size = max(rank.world_size for rank in ranks)
    missing = sorted(set(range(world_size)) - {rank.rank for rank in ranks})
    if not missing:
        return []
    return [f"{len(missing)} of {world_size} ranks never reported: {format_ranges(missing, _MOST_RANGES_SHOWN)}"]


def _rank_folders(ranks: Path) -> Iterator[tuple[Path, int, int]]:
    if not ranks.is_dir():
        return
    for folder in sorted(ranks.iterdir()):
        number = wire.parse_rank_folder(folder.name)
        if number is not None and folder.is_dir():
            yield folder, *number


def _read_process(folder: Path, rank: int, attempt: int, gpus: Sequence[GpuSamples], damage: list[str]) -> _Process:
    columns = read_step_columns(folder, damage)
    saves = read_process_saves(folder, rank, attempt, damage)
    micro_batches = read_micro_batches(folder, rank, attempt, damage)
    events = read_records(folder / wire.EVENTS_FILE, decode_event, damage)
    notes = tuple(event.text for event in events if isinstance(event, NoteRecord))
    timeline = to_timeline(
        (rank, attempt), read_rank_record(folder), [span for _, span in columns.spans], events, saves.records
    )
    return _Process(
        number=rank,
        rank=read_rank(folder, (rank, attempt), notes, gpus, damage),
        steps=to_steps(rank, attempt, columns) if columns.rows else None,
        windows=tuple(_to_window(rank, attempt, event) for event in events if isinstance(event, WindowRecord)),
        micro_batches=micro_batches,
        timeline=timeline if columns.rows else None,
        model=read_model_record(folder, rank, damage),
        saves=saves,
        setup=read_setup(folder, damage),
    )


def read_rank(
    folder: Path, number: tuple[int, int], notes: tuple[str, ...], gpus: Sequence[GpuSamples], damage: list[str]
) -> Rank | None:
    """Who a process is, by its rank and attempt; None where its record cannot be read."""
    record = read_rank_record(folder)
    if record is None:
        damage.append(f"{wire.RANKS_FOLDER}/{folder.name}/{wire.RANK_FILE} cannot be read")
        return None
    host_gpus = [gpu for gpu in gpus if gpu.host == record.host]
    return Rank(
        rank=number[0],
        attempt=number[1],
        world_size=record.world_size,
        host=record.host,
        device_uuid=find_device(record, host_gpus),
        device_uuids=find_devices(record, host_gpus),
        visible_uuids=list_visible_devices(record.visible_devices, record.device_order, host_gpus),
        device_type=record.device_type,
        device_name=record.device_name,
        notes=notes,
        parallel=_coordinates(folder),
        options=_options(record.argv) if record.argv else None,
    )


def _coordinates(folder: Path) -> dict[str, int]:
    """The rank's index on each axis of parallelism; empty where it recorded none."""
    coordinates = read_object(folder / wire.PARALLEL_FILE, []).get("coordinates")
    if not isinstance(coordinates, dict):
        return {}
    return {str(axis): index for axis, index in coordinates.items() if type(index) is int and index >= 0}


def _options(words: Sequence[str]) -> dict[str, str]:
    """The options of a command line by their names; the value is empty where there is none."""
    options = {}
    for word, following in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--"):
            name, _, value = word.partition("=")
            options[name] = value if "=" in word or following.startswith("--") else following
    return options


def _to_window(rank: int, attempt: int, record: WindowRecord) -> Window:
    return Window(
        rank=rank,
        first_step=record.first_step,
        last_step=record.last_step,
        trace=record.trace,
        start_ns=record.start_ns,
        stop_ns=record.stop_ns,
        export_ns=record.export_ns,
        trace_bytes=record.trace_bytes,
        partial=record.partial,
        release_ns=record.release_ns,
        rss_before_bytes=record.rss_before_bytes,
        rss_after_bytes=record.rss_after_bytes,
        detached=record.detached,
        attached_because=record.attached_because,
        activities=record.activities,
        attempt=attempt,
    )
