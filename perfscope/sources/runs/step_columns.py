"""The step records of one process in columns: files of packed columns, then lines of JSON.

A week has a million steps: columns are never made into records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from perfscope import wire
from perfscope.files import read_regular
from perfscope.sources.runs.numbers import JoinedNumbers, Numbers, ReadNumbers, to_column
from perfscope.sources.runs.packed import decode_columns
from perfscope.sources.runs.records import decode_step, read_records
from perfscope.tables.columns import Bool, Int64, MaskedInt64, present
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


@dataclass(frozen=True, slots=True, eq=False)
class StepColumns:
    """The steps of one process, in their order; fields of ``StepRecord``.

    Attributes:
        rows: How many there are.
        numbers: Columns of numbers by name, not decoded yet; those of lists are ``host.0`` and so on.
        texts: Columns of texts, empty where absent.
        flags: Columns of flags, false where absent.
        spans: What happened besides training, with the row that it was written with.
        probes: Steps that were timed on the device.
    """

    rows: int
    numbers: Mapping[str, Numbers]
    texts: Mapping[str, npt.NDArray[np.str_]]
    flags: Mapping[str, Bool]
    spans: tuple[tuple[int, Span], ...] = ()
    probes: tuple[DeviceProbe, ...] = field(default=())

    def number(self, name: str) -> MaskedInt64:
        """A column of numbers; all masked where no step has them."""
        return to_column(self.numbers.get(name), self.rows)

    def whole(self, name: str) -> Int64:
        """A column of numbers that every step has."""
        return np.asarray(np.ma.getdata(self.number(name)), np.int64)


def read_step_columns(folder: Path, damage: list[str]) -> StepColumns:
    """All steps of a process, those that waited as it was killed included.

    Args:
        folder: The folder of a rank.
        damage: Gets a text for each file and line that cannot be read.
    """
    parts = [part for path in _list_files(folder) if (part := _read_part(path, damage)) is not None and part.rows]
    pending = list(read_records(folder / wire.PENDING_STEPS_FILE, decode_step, damage))
    if pending:
        last_ns = max((int(part.whole("end_ns")[-1]) for part in parts), default=0)
        parts.append(from_records([step for step in pending if step.end_ns > last_ns]))
    return _join(parts)


def read_last_step(folder: Path) -> int:
    """The number of the last step that a process wrote, from the last file that has one; 0 of none."""
    pending = [step.step for step in read_records(folder / wire.PENDING_STEPS_FILE, decode_step, [])]
    for path in reversed(_list_files(folder)):
        part = _read_part(path, [])
        if part is not None and part.rows:
            return max([int(part.whole("step")[-1]), *pending[-1:]])
    return max(pending[-1:], default=0)


def _list_files(folder: Path) -> list[Path]:
    """The files of a process's steps, in their order; a packed one takes the place of its lines."""
    stem, suffix = wire.STEPS_FILE.split(".")
    packed = sorted(folder.glob(f"{stem}.*{wire.PACKED_SUFFIX}"))
    plain = sorted(folder.glob(f"{stem}.*.{suffix}"))
    names = {path.name.removesuffix(wire.PACKED_SUFFIX): path for path in packed}
    files = {path.name.removesuffix(f".{suffix}"): path for path in plain} | names
    return [*(files[name] for name in sorted(files)), folder / wire.STEPS_FILE]


def _read_part(path: Path, damage: list[str]) -> StepColumns | None:
    if path.suffix != wire.PACKED_SUFFIX:
        return from_records(read_records(path, decode_step, damage))
    try:
        return unpack(read_regular(path))
    except (OSError, ValueError, KeyError, TypeError, msgspec.MsgspecError):
        damage.append(f"{path.parent.name}/{path.name}: cannot be read")
        return None


def unpack(content: bytes) -> StepColumns:
    """The steps of a packed file, as ``perfscope.hooks.pack_records`` describes it.

    Raises:
        ValueError, KeyError, TypeError: It is damaged.
    """
    packed = decode_columns(content, wire.PACKED_SCHEMA)
    texts = {name: _decode_texts(*codes) for name, codes in packed.codes.items() if name in _TEXTS}
    flags = {
        name: np.asarray([False, *map(bool, values)], np.bool_)[places]
        for name, (values, places) in packed.codes.items()
        if name in _FLAGS
    }
    spans = [
        (int(row), msgspec.convert(span, Span))
        for row, fields in packed.remainder.items()
        for span in fields.get("spans", ())
    ]
    return StepColumns(packed.rows, packed.numbers, texts, flags, tuple(spans), _probes(packed.numbers, packed.rows))


def _decode_texts(values: Sequence[object], places: npt.NDArray[np.uint8]) -> npt.NDArray[np.str_]:
    """The text of each row; one that all rows have is held once."""
    texts = np.asarray(["", *map(str, values)], np.str_)
    if len(places) and (places == places[0]).all():
        return np.broadcast_to(np.asarray(str(texts[places[0]])), len(places))
    return np.asarray(texts[places], np.str_)


def _probes(numbers: Mapping[str, Numbers], count: int) -> tuple[DeviceProbe, ...]:
    if "probe.0" not in numbers:
        return ()
    columns = [to_column(numbers.get(f"probe.{index}"), count) for index in range(len(DeviceProbe._fields))]
    rows = np.flatnonzero(present(columns[0]))
    values: list[list[Any]] = [column[rows].tolist() for column in columns]
    return tuple(DeviceProbe(*row) for row in zip(*values, strict=True))


def from_records(records: Sequence[StepRecord]) -> StepColumns:
    """Records as columns."""
    numbers: dict[str, Numbers] = {name: _read([getattr(record, name) for record in records]) for name in _NUMBERS}
    for name, places in _LISTS.items():
        lists = [getattr(record, name) for record in records]
        if any(values is not None for values in lists):
            for index in range(places):
                numbers[f"{name}.{index}"] = _read([None if values is None else values[index] for values in lists])
    return StepColumns(
        rows=len(records),
        numbers=numbers,
        texts={name: np.asarray([getattr(record, name) or "" for record in records], np.str_) for name in _TEXTS},
        flags={name: np.asarray([bool(getattr(record, name)) for record in records], np.bool_) for name in _FLAGS},
        spans=tuple((row, span) for row, record in enumerate(records) for span in record.spans or ()),
        probes=tuple(record.probe for record in records if record.probe is not None),
    )


def _read(values: Sequence[int | None]) -> ReadNumbers:
    absent = np.asarray([value is None for value in values], np.bool_)
    return ReadNumbers(np.ma.MaskedArray(np.asarray([value or 0 for value in values], np.int64), mask=absent))


def _join(parts: Sequence[StepColumns]) -> StepColumns:
    """One after the other."""
    filled = [part for part in parts if part.rows]
    if len(filled) <= 1:
        return filled[0] if filled else from_records([])
    first_rows = np.cumsum([0, *(part.rows for part in filled)]).tolist()
    numbers = {
        name: JoinedNumbers([(part.rows, part.numbers.get(name)) for part in filled])
        for name in dict.fromkeys(name for part in filled for name in part.numbers)
    }
    return StepColumns(
        rows=first_rows[-1],
        numbers=numbers,
        texts={name: _join_texts([_text(part, name) for part in filled], first_rows[-1]) for name in _TEXTS},
        flags={name: np.concatenate([_flag(part, name) for part in filled]) for name in _FLAGS},
        spans=tuple(
            (first + row, span) for first, part in zip(first_rows, filled, strict=False) for row, span in part.spans
        ),
        probes=tuple(probe for part in filled for probe in part.probes),
    )


def _text(columns: StepColumns, name: str) -> npt.NDArray[np.str_]:
    return columns.texts.get(name, np.broadcast_to(np.asarray(""), columns.rows))


def _join_texts(parts: Sequence[npt.NDArray[np.str_]], rows: int) -> npt.NDArray[np.str_]:
    """One after the other; a text that all of a million rows have is held once."""
    first = parts[0][0]
    if all(((part[:1] if part.strides == (0,) else part) == first).all() for part in parts):
        return np.broadcast_to(np.asarray(first), rows)
    return np.concatenate(parts)


def _flag(columns: StepColumns, name: str) -> Bool:
    return columns.flags.get(name, np.zeros(columns.rows, np.bool_))
