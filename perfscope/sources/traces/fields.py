"""The fields of decoded events as columns of integers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import TypeVar

import numpy as np

from perfscope.sources.traces.records import AnyEvent, DeviceArgs, HostArgs
from perfscope.tables.columns import Int64
from perfscope.tables.trace import ABSENT

_ARGS = attrgetter("args")
_Arguments = TypeVar("_Arguments", DeviceArgs, HostArgs)


def integers(records: Sequence[DeviceArgs] | Sequence[HostArgs], name: str) -> Int64:
    """One field of the records; a value that is null, or no integer of 64 bits, is ABSENT."""
    try:
        return np.fromiter(map(attrgetter(name), records), np.int64, len(records))
    except (TypeError, ValueError, OverflowError):
        return np.array([_fitting(getattr(record, name)) for record in records], np.int64)


def _fitting(value: int | str | None) -> int:
    """A value as an integer of a column; ABSENT where it is none, or too large. ROCm writes streams as ``0x0``."""
    try:
        if isinstance(value, str):
            number = int(value, 16 if value.startswith("0x") else 10)
        else:
            number = ABSENT if value is None else value
    except ValueError:
        return ABSENT
    return number if abs(number) < 1 << 63 else ABSENT


def arguments_of(events: Sequence[AnyEvent], default: _Arguments) -> list[_Arguments]:
    """The events' arguments; null is the default."""
    args = list(map(_ARGS, events))
    return args if all(args) else [arguments or default for arguments in args]


def external_ids(args: Sequence[DeviceArgs] | Sequence[HostArgs]) -> Int64:
    """The external ids of events, as exporters of any age write them."""
    return with_fallback(integers(args, "external_id"), partial(integers, args, "old_external_id"))


def with_fallback(column: Int64, fallback: Callable[[], Int64]) -> Int64:
    """A column, with the values of another one where it is ABSENT."""
    absent = column == ABSENT
    return np.where(absent, fallback(), column) if absent.any() else column
