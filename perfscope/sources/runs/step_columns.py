"""The step records of one process in columns: no more than one file of them is kept as records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from perfscope import wire
from perfscope.sources.runs.records import decode_step, list_segments, read_records
from perfscope.tables.columns import Bool, Int64, MaskedInt64, join
from perfscope.wire.host import DeviceProbe, HostWaits, HostWork
from perfscope.wire.records import Span, StepRecord

_LISTS = {"host": len(HostWork._fields), "waits": len(HostWaits._fields)}
_NUMBERS = (
    "step", "end_ns", "wall_ns", "micro_batches", "samples", "tokens", "global_samples", "data_wait_ns", "save_ns",
    "no_grad_ns", "gap_ns", "hook_ns", "iteration", "memory_peak_bytes", "alloc_retries", "device_allocs",
    "launcher_delay_ns",
)  # fmt: skip
_TEXTS = ("source", "window")
_FLAGS = ("skipped", "draining")
_LARGEST = 1 << 62


@dataclass(frozen=True, slots=True, eq=False)
class StepColumns:
    """The steps of one process, in their order; fields of ``StepRecord``.

    Attributes:
        rows: How many there are.
        numbers: Columns of numbers by name, as far as any step has them; those of lists are ``host.0`` and so on.
        texts: Columns of texts, empty where absent.
        flags: Columns of flags, false where absent.
        spans: What happened besides training, with the row that it was written with.
        probes: Steps that were timed on the device.
    """

    rows: int
    numbers: Mapping[str, MaskedInt64]
    texts: Mapping[str, npt.NDArray[np.str_]]
    flags: Mapping[str, Bool]
    spans: tuple[tuple[int, Span], ...] = ()
    probes: tuple[DeviceProbe, ...] = ()

    def number(self, name: str) -> MaskedInt64:
        """A column of numbers; all masked where no step has them."""
        column = self.numbers.get(name)
        return _absent(self.rows) if column is None else column

    def whole(self, name: str) -> Int64:
        """A column of numbers that every step has."""
        return np.asarray(np.ma.getdata(self.number(name)), np.int64)


def read_step_columns(folder: Path, damage: list[str]) -> StepColumns:
    """All steps of a process.

    Args:
        folder: The folder of a rank.
        damage: Gets a text for each file and line that cannot be read.
    """
    parts = [from_records(_read_steps(path, damage)) for path in list_segments(folder, wire.STEPS_FILE)]
    return _join(parts)


def read_last_step(folder: Path) -> int:
    """The number of the last step that a process wrote, from the last file that has one; 0 of none."""
    for path in reversed(list_segments(folder, wire.STEPS_FILE)):
        steps = _read_steps(path, [])
        if steps:
            return steps[-1].step
    return 0


def _read_steps(path: Path, damage: list[str]) -> list[StepRecord]:
    records = read_records(path, decode_step, damage)
    sound = [record for record in records if _has_sound_numbers(record)]
    if len(sound) < len(records):
        damage.append(f"{path.parent.name}/{path.name}: {len(records) - len(sound)} steps have impossible numbers")
    return sound


def _has_sound_numbers(record: StepRecord) -> bool:
    """Whether every number fits into a column."""
    values = [value for value in vars(record).values() if type(value) is int]
    values += [value for values in (record.host, record.waits, record.probe) for value in values or () if value]
    return max(values) < _LARGEST and min(values) > -_LARGEST


def from_records(records: Sequence[StepRecord]) -> StepColumns:
    """Records as columns."""
    columns = {name: _to_column([getattr(record, name) for record in records]) for name in _NUMBERS}
    for name, places in _LISTS.items():
        lists = [getattr(record, name) for record in records]
        if any(values is not None for values in lists):
            for index in range(places):
                columns[f"{name}.{index}"] = _to_column([None if values is None else values[index] for values in lists])
    return StepColumns(
        rows=len(records),
        numbers={name: column for name, column in columns.items() if column is not None},
        texts={name: np.asarray([getattr(record, name) or "" for record in records], np.str_) for name in _TEXTS},
        flags={name: np.asarray([bool(getattr(record, name)) for record in records], np.bool_) for name in _FLAGS},
        spans=tuple((row, span) for row, record in enumerate(records) for span in record.spans or ()),
        probes=tuple(record.probe for record in records if record.probe is not None),
    )


def _to_column(values: Sequence[int | None]) -> MaskedInt64 | None:
    """A column; None where no value is known."""
    if None not in values:
        return np.ma.MaskedArray(np.asarray(values, np.int64)) if values else None
    absent = np.asarray([value is None for value in values], np.bool_)
    return None if absent.all() else np.ma.MaskedArray(np.asarray([value or 0 for value in values], np.int64), absent)


def _absent(rows: int) -> MaskedInt64:
    return np.ma.MaskedArray(np.zeros(rows, np.int64), mask=np.ones(rows, np.bool_))


def _join(parts: Sequence[StepColumns]) -> StepColumns:
    """One after the other."""
    filled = [part for part in parts if part.rows]
    if len(filled) <= 1:
        return filled[0] if filled else from_records([])
    first_rows = np.cumsum([0, *(part.rows for part in filled)]).tolist()
    names = dict.fromkeys(name for part in filled for name in part.numbers)
    return StepColumns(
        rows=first_rows[-1],
        numbers={name: join([part.number(name) for part in filled]) for name in names},
        texts={name: _join_texts([part.texts[name] for part in filled], first_rows[-1]) for name in _TEXTS},
        flags={name: np.concatenate([part.flags[name] for part in filled]) for name in _FLAGS},
        spans=tuple(
            (first + row, span) for first, part in zip(first_rows, filled, strict=False) for row, span in part.spans
        ),
        probes=tuple(probe for part in filled for probe in part.probes),
    )


def _join_texts(parts: Sequence[npt.NDArray[np.str_]], rows: int) -> npt.NDArray[np.str_]:
    """One after the other; a text that all of a million rows have is held once."""
    first = parts[0][0]
    if all((part == first).all() for part in parts):
        return np.broadcast_to(np.asarray(first), rows)
    return np.concatenate(parts)
