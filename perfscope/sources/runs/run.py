"""A run's folder as a Run: step records, windows and rank facts of every process that reported.

Hooks write whole lines, but a killed process or a full disk can leave half a line at the end: it is dropped and named.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from perfscope import wire
from perfscope.errors import SourceError
from perfscope.sources.runs.micro_batches import read_micro_batches
from perfscope.sources.runs.model_record import read_model_record
from perfscope.sources.runs.nvml import read_gpus
from perfscope.sources.runs.visible_devices import device_of, devices_of, visible_devices
from perfscope.tables.columns import masked
from perfscope.tables.gpus import GpuSamples
from perfscope.tables.micro_batches import MicroBatches
from perfscope.tables.model import Model
from perfscope.tables.run import Rank, Run, Window
from perfscope.tables.saves import Saves, SaveTiming
from perfscope.tables.steps import Steps
from perfscope.units import format_ranges

_MOST_SHOWN = 16
_NO_RANKS = (
    "no training process reported: either none imported torch and reached a step, or the launcher dropped PYTHONPATH "
    "or started Python with -I, -E or -S"
)


def is_run(path: Path) -> bool:
    """Whether a folder is a run of ``perfscope profile``."""
    return (path / wire.RUN_FILE).is_file() or (path / wire.RANKS_FOLDER).is_dir()


def read_run(path: Path) -> Run:
    """Read a run's folder, traces excepted.

    Raises:
        SourceError: The folder is no run.
    """
    if not is_run(path):
        raise SourceError(path, "is not a run of `perfscope profile`", hint="it has neither run.json nor ranks/")
    damage: list[str] = []
    facts = _read_json(path / wire.RUN_FILE, damage)
    gpus, gpu_notes = read_gpus(path, damage)
    ranks: list[Rank] = []
    steps: list[Steps] = []
    windows: list[Window] = []
    micro_batches: list[MicroBatches] = []
    models: list[Model] = []
    timings: list[SaveTiming] = []
    for folder, rank, attempt in _rank_folders(path / wire.RANKS_FOLDER):
        records = _read_lines(folder / wire.STEPS_FILE, wire.StepRecord, damage)
        if records:
            steps.append(_steps(rank, attempt, records))
        saved = _read_lines(folder / wire.CHECKPOINTS_FILE, wire.CheckpointRecord, damage)
        timings.extend(_save(number, rank, record) for number, record in enumerate(saved))
        micro_batches.extend(read_micro_batches(folder, rank, attempt, damage))
        events = _read_lines(folder / wire.EVENTS_FILE, wire.WindowRecord | wire.NoteRecord, damage)
        windows.extend(_window(rank, event) for event in events if isinstance(event, wire.WindowRecord))
        notes = tuple(event.text for event in events if isinstance(event, wire.NoteRecord))
        fact = _read_rank(folder, (rank, attempt), notes, gpus, damage)
        if fact is not None:
            ranks.append(fact)
        model = read_model_record(folder, rank, damage)
        if model is not None:
            models.append(model)
    damage += _missing_ranks(ranks)
    return Run(
        path=str(path),
        command=tuple(str(word) for word in facts.get("command", ())),
        exit_status=facts.get("exit_status"),
        ranks=tuple(ranks),
        steps=tuple(steps),
        windows=tuple(windows),
        damage=tuple(damage),
        gpus=gpus,
        gpu_notes=gpu_notes,
        micro_batches=tuple(micro_batches),
        models=tuple(models),
        saves=Saves(tuple(timings), _training_ns(steps)) if timings else None,
    )


def _missing_ranks(ranks: Sequence[Rank]) -> list[str]:
    """The ranks that never reported, in words."""
    if not ranks:
        return [_NO_RANKS]
    world_size = max(rank.world_size for rank in ranks)
    missing = sorted(set(range(world_size)) - {rank.rank for rank in ranks})
    if not missing:
        return []
    return [f"{len(missing)} of {world_size} ranks never reported: {format_ranges(missing, _MOST_SHOWN)}"]


def _rank_folders(ranks: Path) -> Iterable[tuple[Path, int, int]]:
    if not ranks.is_dir():
        return
    for folder in sorted(ranks.iterdir()):
        number = wire.parse_rank_folder(folder.name)
        if number is not None and folder.is_dir():
            yield folder, *number


def _read_json(path: Path, damage: list[str]) -> dict[str, Any]:
    if not path.is_file():
        damage.append(f"{path.name} is missing")
        return {}
    try:
        value = json.loads(path.read_bytes())
    except ValueError:
        damage.append(f"{path} is not whole JSON")
        return {}
    return value if isinstance(value, dict) else {}


def _read_rank(
    folder: Path, number: tuple[int, int], notes: tuple[str, ...], gpus: Sequence[GpuSamples], damage: list[str]
) -> Rank | None:
    try:
        record = msgspec.json.decode((folder / wire.RANK_FILE).read_bytes(), type=wire.RankRecord)
    except (OSError, msgspec.MsgspecError):
        damage.append(f"{wire.RANKS_FOLDER}/{folder.name}/{wire.RANK_FILE} cannot be read")
        return None
    parallel = _read_json(folder / wire.PARALLEL_FILE, []).get("coordinates", {})
    here = [gpu for gpu in gpus if gpu.host == record.host]
    return Rank(
        rank=number[0],
        attempt=number[1],
        world_size=record.world_size,
        host=record.host,
        device_uuid=device_of(record, here),
        device_uuids=devices_of(record, here),
        visible_uuids=visible_devices(record.visible_devices, record.device_order, here),
        device_type=record.device_type,
        device_name=record.device_name,
        notes=notes,
        parallel={str(axis): int(index) for axis, index in parallel.items()},
    )


def _read_lines(path: Path, kind: Any, damage: list[str]) -> list[Any]:  # noqa: ANN401 - a record type or a union
    if not path.is_file():
        return []
    decode = _decoder(kind)
    records = []
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            records.append(decode(line))
        except msgspec.MsgspecError:
            what = "ends in half a line" if number == len(lines) else f"line {number} cannot be read"
            damage.append(f"{path.parent.name}/{path.name}: {what}")
    return records


def _decoder(kind: Any) -> Any:  # noqa: ANN401 - as above
    if kind in (wire.StepRecord, wire.CheckpointRecord):
        return msgspec.json.Decoder(kind).decode
    kinds = {"window": wire.WindowRecord, "note": wire.NoteRecord}

    def decode(line: bytes) -> object:
        value = msgspec.json.decode(line, type=dict[str, Any])
        if value.get("kind") not in kinds:
            raise msgspec.ValidationError("no known kind of event")
        return msgspec.convert(value, kinds[value["kind"]])

    return decode


def _steps(rank: int, attempt: int, records: Sequence[wire.StepRecord]) -> Steps:
    return Steps(
        rank=rank,
        attempt=attempt,
        step=np.asarray([record.step for record in records], np.int64),
        end_ns=np.asarray([record.end_ns for record in records], np.int64),
        wall_ns=masked([record.wall_ns for record in records]),
        source=np.asarray([record.source for record in records], np.str_),
        window=np.asarray([record.window or "" for record in records], np.str_),
        skipped=np.asarray([bool(record.skipped) for record in records], np.bool_),
        micro_batches=masked([record.micro_batches for record in records]),
        samples=masked([record.samples for record in records]),
        tokens=masked([record.tokens for record in records]),
        global_samples=masked([record.global_samples for record in records]),
        data_wait_ns=masked([record.data_wait_ns for record in records]),
        save_ns=masked([record.save_ns for record in records]),
        draining=np.asarray([bool(record.draining) for record in records], np.bool_),
        hook_ns=masked([record.hook_ns for record in records]),
        memory_peak_bytes=masked([record.memory_peak_bytes for record in records]),
    )


def _window(rank: int, record: wire.WindowRecord) -> Window:
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
    )


def _save(number: int, rank: int, record: wire.CheckpointRecord) -> SaveTiming:
    return SaveTiming(
        number=number,
        rank=rank,
        step=record.step,
        blocked_ns=record.end_ns - record.start_ns,
        drained_ns=None if record.drained_ns is None else record.drained_ns - record.start_ns,
        size_bytes=record.size_bytes,
        asynchronous=record.asynchronous,
        source=record.source,
        path=record.path,
    )


def _training_ns(tables: Sequence[Steps]) -> int | None:
    """From the first step's end to the last one's, of the process that trained longest; None where none did."""
    return max((int(table.end_ns[-1] - table.end_ns[0]) for table in tables), default=0) or None
