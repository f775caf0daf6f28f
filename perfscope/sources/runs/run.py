"""A run's folder as a Run: step records, windows and rank facts of every process that reported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from perfscope import wire
from perfscope.errors import SourceError
from perfscope.sources.memory import find_histories, read_histories
from perfscope.sources.runs.folder import is_run
from perfscope.sources.runs.model_record import read_model_record
from perfscope.sources.runs.nvml import read_gpus
from perfscope.sources.runs.peer_stalls import find_peer_stalls
from perfscope.sources.runs.records import (
    decode_event,
    decode_micro_batch,
    read_object,
    read_optional,
    read_rank_record,
    read_records,
    read_segments,
)
from perfscope.sources.runs.save_records import ProcessSaves, read_process_saves, to_saves, to_timeline
from perfscope.sources.runs.step_columns import read_step_columns, to_steps
from perfscope.sources.runs.visible_devices import find_device, find_devices, list_visible_devices
from perfscope.tables.gpus import GpuSamples
from perfscope.tables.memory import AllocatorHistory
from perfscope.tables.micro_batches import MicroBatches, PassTotal
from perfscope.tables.model import Model
from perfscope.tables.run import Rank, Run, Window
from perfscope.tables.steps import Steps
from perfscope.tables.timeline import Timeline
from perfscope.units import format_ranges
from perfscope.wire.places import PlacesRecord
from perfscope.wire.records import NoteRecord, WindowRecord
from perfscope.wire.setup import SetupRecord

_T = TypeVar("_T")
_D = TypeVar("_D")
#: What torch reads the setting of its allocator from.
_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
_NO_RANKS = (
    "no training process reported: either none imported torch and reached a step, or the launcher dropped PYTHONPATH "
    "or started Python with -I, -E or -S"
)


@dataclass(frozen=True, slots=True)
class _Process:
    """What one process of a rank wrote; what is None was not recorded or cannot be read."""

    number: int
    rank: Rank | None
    steps: Steps | None
    windows: tuple[Window, ...]
    micro_batches: tuple[MicroBatches, ...]
    timeline: Timeline | None
    model: Model | None
    saves: ProcessSaves
    setup: SetupRecord | None
    places: PlacesRecord | None


def read_run(path: Path, *, has_samples: bool = True) -> Run:
    """Read a run's folder, traces excepted; without the samples of GPUs, of which a week has a million, if told so.

    Raises SourceError: the folder is no run.
    """
    if not is_run(path):
        raise SourceError(path, "is not a run of `perfscope profile`", hint="it has neither run.json nor ranks/")
    damage: list[str] = []
    facts = _read_object(path / wire.RUN_FILE, damage)
    gpus, gpu_notes = read_gpus(path, damage) if has_samples else ((), ())
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
        command=_stated(facts, "command", tuple[str, ...], ()),
        exit_status=_stated(facts, "exit_status", str, None),
        ranks=ranks,
        steps=find_peer_stalls(steps, timelines),
        windows=tuple(window for process in processes for window in process.windows),
        damage=tuple(damage),
        gpus=gpus,
        gpu_notes=gpu_notes,
        micro_batches=tuple(passes for process in processes for passes in process.micro_batches),
        models=tuple(process.model for process in processes if process.model is not None),
        saves=to_saves([process.saves for process in processes], steps),
        planned_windows=_stated(facts, "windows", tuple[tuple[int, int], ...], ()),
        allocator=_allocator(facts),
        recorded=_stated(facts, "recorded", frozenset[str], frozenset()),
        timelines=timelines,
        read_memory=partial(_read_memory, path),
        setups={process.number: process.setup for process in processes if process.setup is not None},
        places={process.number: process.places for process in processes if process.places is not None},
    )


def _read_memory(run: Path) -> tuple[AllocatorHistory, ...]:
    return tuple(history for path in find_histories(run) for history in read_histories(path))


def _stated(facts: Mapping[str, object], name: str, kind: type[_T], default: _D) -> _T | _D:
    try:
        return msgspec.convert(facts.get(name), kind)
    except msgspec.ValidationError:
        return default


def _allocator(facts: Mapping[str, object]) -> str:
    variables = _stated(facts, "environment", dict[str, object], {})
    values = [variables.get(name) for name in _ALLOCATOR]
    return ",".join(value for value in values if isinstance(value, str))


def _missing_ranks(ranks: Sequence[Rank]) -> list[str]:
    if not ranks:
        return [_NO_RANKS]
    world_size = max(rank.world_size for rank in ranks)
    missing = sorted(set(range(world_size)) - {rank.rank for rank in ranks})
    return [f"{len(missing)} of {world_size} ranks never reported: {format_ranges(missing)}"] if missing else []


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
        windows=tuple(
            Window(rank=rank, attempt=attempt, **{name: value for name, value in vars(event).items() if name != "kind"})
            for event in events
            if isinstance(event, WindowRecord)
        ),
        micro_batches=micro_batches,
        timeline=timeline if columns.rows else None,
        model=read_model_record(folder, rank, damage),
        saves=saves,
        setup=read_optional(folder / wire.SETUP_FILE, SetupRecord, damage),
        places=read_optional(folder / wire.PLACES_FILE, PlacesRecord, damage),
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
    coordinates = _read_object(folder / wire.PARALLEL_FILE, []).get("coordinates")
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


def read_micro_batches(folder: Path, rank: int, attempt: int, damage: list[str]) -> tuple[MicroBatches, ...]:
    """The passes of micro-batches that the hooks timed; a record without an order has the one before it."""
    passes: list[MicroBatches] = []
    order: tuple[str, ...] = ()
    segments = read_segments(folder, wire.MICRO_BATCHES_FILE, decode_micro_batch, damage)
    for record in (record for records in segments for record in records):
        order = record.order or order
        totals = tuple(PassTotal(*total) for total in record.totals)
        place = (record.step, record.device, record.devices, record.stages)
        passes.append(MicroBatches(rank, attempt, *place, record.span_ns, totals, order))
    return tuple(passes)


def _read_object(path: Path, damage: list[str]) -> dict[str, object]:
    if not path.is_file():
        damage.append(f"{path.name} is missing")
        return {}
    fields = read_object(path)
    if fields is None:
        damage.append(f"{path} is not complete JSON")
    return fields or {}
