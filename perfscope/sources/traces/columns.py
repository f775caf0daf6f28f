"""Decoded events as columns, with integer nanoseconds.

Times are microseconds with up to three decimals in the file. A double holds them to the nanosecond below 2**43 us;
older exporters write microseconds since 1970, which are above that, and are read digit by digit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal, InvalidOperation
from functools import partial
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from perfscope.sources.traces.records import DEVICE_CATEGORIES, FILL, KERNEL, KIND, AnyEvent, Args
from perfscope.tables.columns import Int64
from perfscope.tables.kernel_classes import classify, classify_copy
from perfscope.tables.trace import ABSENT, Collective, DeviceEvents, Events, HostSpans, Int32, Work, distinct

#: Below this a double of microseconds keeps every nanosecond.
_EXACT_BELOW_US = 2.0**43
#: CUPTI's overflowed records claim to last for years.
_LONGEST_NS = 7 * 86400 * 10**9
_DECIMALS = 3

_NAME, _TS, _DURATION, _ARGS = map(attrgetter, ("name", "ts", "dur", "args"))
_PROCESS, _THREAD = map(attrgetter, ("pid", "tid"))


class TimesDoNotFit(Exception):
    """A time is too large for a double: decode again, in digits."""


class Columns:
    """Collects events block by block, and finishes them as tables.

    Attributes:
        names: Every name met so far, with its number.
        collectives: What is said of communication kernels.
        groups: Of each process group that a kernel names: description, ranks and size as they are written.
        dropped: How many events were left out, by reason.
    """

    def __init__(self, wanted: Events) -> None:
        self.names: dict[str, int] = {}
        self.collectives: list[Collective] = []
        self.groups: dict[str, tuple[str, str, int]] = {}
        self.dropped = {"no time": 0, "a negative duration": 0, "a duration of more than seven days": 0}
        self._wanted = wanted
        self._collective_numbers: dict[Collective, int] = {}
        self._texts: dict[str, int] = {}
        self._device: list[tuple[Any, ...]] = []
        self._host: dict[Events, list[tuple[Any, ...]]] = {kind: [] for kind in Events if kind is not Events.DEVICE}

    def add(self, events: Iterable[AnyEvent]) -> None:
        """Take in one block of events; those that are not wanted are left out.

        Raises:
            TimesDoNotFit: A time is too large for the doubles of Event.
        """
        by_category: dict[str, list[AnyEvent]] = {}
        for event in events:
            if event.ph == "X":
                by_category.setdefault(event.cat, []).append(event)
        for category, members in by_category.items():
            kind = KIND.get(category)
            if kind is None or kind not in self._wanted:
                continue
            if kind is Events.DEVICE:
                self._add_device(members, DEVICE_CATEGORIES[category])
            else:
                self._add_host(members, kind)

    def device_events(self) -> DeviceEvents:
        """The device's table, in the order of start."""
        types = (np.int32, np.int8, *[np.int64] * 8)
        name, category, start_ns, *others = _in_order(self._device, types, by=2)
        duration_ns, device, stream, correlation, external_id, size, collective = others
        return DeviceEvents(
            name=name,
            work=self._work(name, category, collective),
            start_ns=start_ns,
            duration_ns=duration_ns,
            device=device,
            stream=stream,
            correlation=correlation,
            external_id=external_id,
            bytes=size,
            collective=collective,
        )

    def host_spans(self, kind: Events) -> HostSpans:
        """One of the host's tables, in the order of start."""
        return HostSpans(*_in_order(self._host[kind], (np.int32, *[np.int64] * 6), by=1))

    def _add_host(self, events: Sequence[AnyEvent], kind: Events) -> None:
        events, start_ns, duration_ns = self._times(events)
        args = _args(events)
        self._host[kind].append(
            (
                self._numbered(events),
                start_ns,
                duration_ns,
                self._identities(events, _PROCESS),
                self._identities(events, _THREAD),
                _integers(args, "correlation"),
                _external_ids(args),
            )
        )

    def _add_device(self, events: Sequence[Any], category: int) -> None:
        events, start_ns, duration_ns = self._times(events)
        args = _args(events)
        self._device.append(
            (
                self._numbered(events),
                np.full(len(events), category, np.int8),
                start_ns,
                duration_ns,
                _either(_integers(args, "device"), partial(self._identities, events, _PROCESS)),
                _either(_integers(args, "stream"), partial(self._identities, events, _THREAD)),
                _integers(args, "correlation"),
                _external_ids(args),
                _integers(args, "bytes"),
                self._collectives_of(args),
            )
        )

    def _times(self, events: Sequence[Any]) -> tuple[Sequence[Any], Int64, Int64]:
        """The events with a possible time and duration, and these in nanoseconds."""
        whole = [event for event in events if event.ts is not None and event.dur is not None]
        if whole and isinstance(whole[0].ts, msgspec.Raw):
            written = [_digits_to_ns(event.ts) for event in whole]
            whole = [event for event, ns in zip(whole, written, strict=True) if ns is not None]
            start_ns = np.array([ns for ns in written if ns is not None], np.int64)
        else:
            start_us = np.fromiter(map(_TS, whole), np.float64, len(whole))
            if len(start_us) and np.abs(start_us).max() >= _EXACT_BELOW_US:
                raise TimesDoNotFit
            start_ns = _to_ns(start_us)
        self.dropped["no time"] += len(events) - len(whole)
        duration_us = np.fromiter(map(_DURATION, whole), np.float64, len(whole))
        negative, endless = duration_us < 0, duration_us > _LONGEST_NS / 1000
        if not negative.any() and not endless.any():
            return whole, start_ns, _to_ns(duration_us)
        self.dropped["a negative duration"] += int(negative.sum())
        self.dropped["a duration of more than seven days"] += int(endless.sum())
        kept = ~(negative | endless)
        return [whole[index] for index in np.flatnonzero(kept)], start_ns[kept], _to_ns(duration_us[kept])

    def _numbered(self, events: Sequence[AnyEvent]) -> Int32:
        names = self.names
        return np.fromiter((names.setdefault(name, len(names)) for name in map(_NAME, events)), np.int32, len(events))

    def _identities(self, events: Sequence[AnyEvent], of: Callable[[AnyEvent], int | str | None]) -> Int64:
        """Process or thread ids; a text that is no number gets a negative one."""
        try:
            return np.fromiter(map(of, events), np.int64, len(events))
        except (TypeError, ValueError, OverflowError):
            return np.array([self._identity(of(event)) for event in events], np.int64)

    def _identity(self, value: int | str | None) -> int:
        if value is None:
            return ABSENT
        try:
            number = int(value)
        except ValueError:
            return -2 - self._texts.setdefault(str(value), len(self._texts))
        return number if abs(number) < 1 << 63 else ABSENT

    def _collectives_of(self, args: Sequence[Args]) -> Int64:
        rows = np.full(len(args), ABSENT, np.int64)
        for index, one in enumerate(args):
            if one.operation is not None or one.group is not None:
                rows[index] = self._collective(one)
        return rows

    def _collective(self, args: Args) -> int:
        group = args.group or ""
        if group not in self.groups:
            self.groups[group] = (args.description or "", args.ranks or "", args.group_size or 0)
        collective = Collective(
            operation=args.operation or "",
            group=group,
            group_size=args.group_size,
            dtype=args.dtype or "",
            in_elements=args.in_elements,
            out_elements=args.out_elements,
            sequence=args.sequence,
            peer=args.source if args.source is not None else args.destination,
        )
        number = self._collective_numbers.setdefault(collective, len(self.collectives))
        if number == len(self.collectives):
            self.collectives.append(collective)
        return number

    def _work(self, name: Int32, category: Any, collective: Int64) -> Any:  # noqa: ANN401 - arrays of int8
        texts = list(self.names)
        of_kernel, of_copy = np.zeros(len(texts), np.int8), np.zeros(len(texts), np.int8)
        for number in distinct(name):
            of_kernel[number], of_copy[number] = classify(texts[number]), classify_copy(texts[number])
        work = np.where(category == KERNEL, of_kernel[name], of_copy[name])
        work[category == FILL] = Work.COPY
        work[(category == KERNEL) & (collective != ABSENT) & (work != Work.FUSED)] = Work.COMMUNICATION
        return work


def _in_order(blocks: Sequence[tuple[Any, ...]], types: Sequence[Any], by: int) -> list[Any]:
    if not blocks:
        return [np.zeros(0, kind) for kind in types]
    columns = [np.concatenate(parts) for parts in zip(*blocks, strict=True)]
    order = np.argsort(columns[by], kind="stable")
    return [column[order] for column in columns]


def _integers(records: Sequence[Any], name: str) -> Int64:
    """One field of the records; what is null, or no integer of 64 bits, is ABSENT."""
    try:
        return np.fromiter(map(attrgetter(name), records), np.int64, len(records))
    except (TypeError, OverflowError):
        values = [getattr(record, name) for record in records]
        fitting = [value is not None and abs(value) < 1 << 63 for value in values]
        return np.array([value if fits else ABSENT for value, fits in zip(values, fitting, strict=True)], np.int64)


def _args(events: Sequence[Any]) -> list[Any]:
    args = list(map(_ARGS, events))
    return args if all(args) else [one or Args() for one in args]


def _external_ids(args: Sequence[Any]) -> Int64:
    return _either(_integers(args, "external_id"), partial(_integers, args, "old_external_id"))


def _either(column: Int64, other: Callable[[], Int64]) -> Int64:
    """A column, and another one where it is ABSENT."""
    absent = column == ABSENT
    return np.where(absent, other(), column) if absent.any() else column


def _to_ns(microseconds: Any) -> Int64:  # noqa: ANN401 - an array of doubles
    """Doubles of microseconds to nanoseconds; the fraction is taken off first, so that no product is rounded."""
    whole = np.floor(microseconds)
    fraction = np.rint((microseconds - whole) * 1000)
    return np.asarray(whole.astype(np.int64) * 1000 + fraction.astype(np.int64))


def _digits_to_ns(raw: msgspec.Raw) -> int | None:
    """Microseconds as they are written to nanoseconds; None where they are no number, or beyond 146 years."""
    text = bytes(raw).strip(b'"')
    whole, _, fraction = text.partition(b".")
    if whole.isdigit() and (not fraction or fraction.isdigit()) and len(fraction) <= _DECIMALS:
        value = int(whole) * 1000 + int(fraction.ljust(_DECIMALS, b"0"))
    else:
        try:
            value = int((Decimal(text.decode("ascii", "replace")) * 1000).to_integral_value())
        except (InvalidOperation, OverflowError, ValueError):
            return None
    return value if abs(value) < 1 << 62 else None
