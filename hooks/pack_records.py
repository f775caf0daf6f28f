"""Packs a full file of records, in a process of its own at the lowest priority.

A week has a million steps. Lines of JSON are whole after every write, but large: once there are some thousands, those
of steps and of GPUs become one file of columns, about a fifth as large and read twenty times as fast; others are
compressed. Run by itself (``python -I -S pack_records.py FILE...``) it imports the standard library only. The format of
columns, ``perfscope/steps/1``::

    {"schema": ..., "rows": N, "columns": [{"name", "delta", "absent", "bytes"}...], "codes": [{"name", "values"}...]}
    zlib of, for each column: the bytes of its N little-endian signed integers by significance, the least significant of
    all rows first; ``bytes`` is 1, 2, 4 or 8, and 8 where it is not stated; one byte a row that is 1 where the value is
    absent, if ``absent``; then for each code one byte a row, 0 for absent, else 1 + the index in ``values``; then JSON
    of what fits nowhere: {row: {field: value}}

A field that is a list of numbers is a column for each index, ``host.0`` and so on. With ``delta`` a value is the
difference from the row before, which an absent one repeats. ``perfscope/samples/1`` is the same for samples of GPUs:
``head`` is the first line, ``notes`` are the lines that are no samples, and the values of the second GPU of the first
line are ``1.power_mw`` and so on.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import subprocess
import sys
import zlib
from array import array

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SCHEMA = "perfscope/steps/1"
SAMPLES_SCHEMA = "perfscope/samples/1"
PACKED_SUFFIX = ".columns"
_STEPS = "steps."
_SAMPLES = "nvml"
#: Values that grow, by the last word of their names.
_DELTA = (
    "step", "end_ns", "iteration", "t_ns", "energy_mj", "energy_t_ns", "nvlink_tx_kib", "nvlink_rx_kib",
    "pcie_tx_bytes", "pcie_rx_bytes", "sw_power_cap_ns", "sync_boost_ns", "sw_thermal_ns", "hw_thermal_ns",
    "hw_power_brake_ns", "gpm_from_ns", "gpm_to_ns",
)  # fmt: skip
_LISTS = ("host", "waits", "probe")
#: Bytes of a number, and the code of such numbers in arrays.
_SIZES = ((1, "b"), (2, "h"), (4, "i"), (8, "q"))
_MOST_CODES = 255
_LARGEST = 1 << 62
_children: list[subprocess.Popen[bytes]] = []
_waiting: list[str] = []


def start_packing(path: str) -> None:
    """Pack a file soon; one that is never packed stays lines of JSON, which all readers accept."""
    _waiting.append(path)
    _children[:] = [child for child in _children if child.poll() is None]
    if not _children:
        pack_waiting()


def pack_waiting() -> None:
    """Pack what waits for another file to be packed, in a process that may outlive this one."""
    if not _waiting:
        return
    paths, _waiting[:] = _waiting[:], []
    with contextlib.suppress(OSError):
        _children.append(
            subprocess.Popen(
                [sys.executable, "-I", "-S", os.path.abspath(__file__), *paths],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env={},
            )
        )


def pack(path: str) -> None:
    """Replace a file of lines by one of columns, or by a compressed one, atomically.

    Raises:
        OSError: It cannot be written; the lines are unchanged.
        ValueError: A line is no record; the lines are unchanged.
    """
    with open(path, "rb") as file:
        lines = file.read()
    if os.path.basename(os.path.dirname(os.path.abspath(path))) == _SAMPLES:
        target = path.removesuffix(".jsonl") + PACKED_SUFFIX
        packed = to_packed_samples([json.loads(line) for line in lines.splitlines()])
    elif os.path.basename(path).startswith(_STEPS):
        target = path.removesuffix(".jsonl") + PACKED_SUFFIX
        packed = to_packed([json.loads(line) for line in lines.splitlines()])
    else:
        target, packed = f"{path}.gz", gzip.compress(lines, 5)
    unfinished = f"{target}.tmp"
    try:
        with open(unfinished, "wb") as file:
            file.write(packed)
        os.replace(unfinished, target)
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(unfinished)
        raise
    os.unlink(path)


def to_packed(records: list[dict[str, Any]]) -> bytes:
    """The content of a packed file.

    Raises:
        ValueError: A record is no object.
    """
    return _to_packed([_flatten(record) for record in records], {"schema": SCHEMA})


def to_packed_samples(records: list[dict[str, Any]]) -> bytes:
    """The content of a packed file of samples.

    Raises:
        ValueError: It does not begin with a description of GPUs.
    """
    if not records or not isinstance(records[0], dict) or not records[0].get("gpus"):
        raise ValueError("the first line describes no GPU")
    head, *others = records
    samples = [line for line in others if isinstance(line.get("gpus"), list) and len(line["gpus"]) == len(head["gpus"])]
    rows = [
        {
            "t_ns": line["t_ns"],
            **{f"{index}.{name}": value for index, gpu in enumerate(line["gpus"]) for name, value in gpu.items()},
        }
        for line in samples
    ]
    notes = [line for line in others if "gpus" not in line]
    return _to_packed(rows, {"schema": SAMPLES_SCHEMA, "head": head, "notes": notes})


def _to_packed(rows: list[dict[str, Any]], about: dict[str, Any]) -> bytes:
    """Rows as columns; ``about`` is what the header says besides."""
    remainder: dict[int, dict[str, Any]] = {}
    columns, codes, parts = [], [], []
    coded_parts = []
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row.get(name) for row in rows]
        if all(value is None or (type(value) is int and abs(value) < _LARGEST) for value in values):
            has_absent = None in values
            is_delta = name.rpartition(".")[2] in _DELTA
            width, planes = _to_planes(values, is_delta=is_delta)
            columns.append({"name": name, "delta": is_delta, "absent": has_absent, "bytes": width})
            parts.append(planes)
            if has_absent:
                parts.append(bytes(value is None for value in values))
            continue
        distinct = None if any(isinstance(value, (list, dict)) for value in values) else _distinct(values)
        if distinct is None:
            for row, value in enumerate(values):
                if value is not None:
                    remainder.setdefault(row, {})[name] = value
            continue
        codes.append({"name": name, "values": distinct})
        numbering = {repr(value): index for index, value in enumerate(distinct, 1)}
        coded_parts.append(bytes(0 if value is None else numbering[repr(value)] for value in values))
    header = {**about, "rows": len(rows), "columns": columns, "codes": codes}
    body = b"".join([*parts, *coded_parts, json.dumps(remainder, separators=(",", ":")).encode()])
    return json.dumps(header, separators=(",", ":")).encode() + b"\n" + zlib.compress(body, 6)


def _flatten(record: Any) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise ValueError("a record is no object")  # noqa: TRY004 - the only error of a line that cannot be packed
    row = {}
    for name, value in record.items():
        if name in _LISTS and isinstance(value, list):
            row.update({f"{name}.{index}": part for index, part in enumerate(value)})
        else:
            row[name] = value
    return row


def _to_planes(values: list[int | None], *, is_delta: bool) -> tuple[int, bytes]:
    """The bytes of a number, as few as all of them need, and the numbers by significance of their bytes."""
    numbers = [value or 0 for value in values]
    if is_delta:
        for row, value in enumerate(values):
            if value is None and row:
                numbers[row] = numbers[row - 1]
        numbers = [now - before for before, now in zip([0, *numbers], numbers, strict=False)]
    smallest, largest = min(numbers), max(numbers)
    width, code = next(
        size for size in _SIZES if -(1 << 8 * size[0] - 1) <= smallest and largest < 1 << 8 * size[0] - 1
    )
    column = array(code, numbers)
    if sys.byteorder == "big":
        column.byteswap()
    content = column.tobytes()
    return width, b"".join(content[index::width] for index in range(width))


def _distinct(values: list[Any]) -> list[Any] | None:
    """The distinct values, at most as many as a byte can tell apart; None where there are more."""
    distinct: dict[str, Any] = {}
    for value in values:
        if value is not None:
            distinct.setdefault(repr(value), value)
            if len(distinct) > _MOST_CODES:
                return None
    return list(distinct.values())


if __name__ == "__main__":
    os.nice(19)
    if os.getsid(0) == os.getpid():  # where Linux shares processors among sessions first, a priority counts inside one
        with contextlib.suppress(OSError), open("/proc/self/autogroup", "w", encoding="ascii") as priority:
            priority.write("19")
    for segment in sys.argv[1:]:
        with contextlib.suppress(OSError, ValueError):
            pack(segment)
