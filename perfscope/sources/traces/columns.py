"""Decoded events as columns, with integer nanoseconds.

Times are microseconds with up to three decimals in the file. A double holds them to the nanosecond below 2**43 us.
Older exporters write whole microseconds since 1970, which are above that, and are exact, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache, partial
from operator import attrgetter
from typing import TypeAlias, TypeVar
from zlib import crc32

import msgspec
import numpy as np
from msgspec.structs import replace

from perfscope.constants import NS_PER_S, NS_PER_US, S_PER_DAY
from perfscope.models.data_files import read_data
from perfscope.sources.traces.records import (
    DEVICE_CATEGORIES,
    FILL,
    KERNEL,
    KIND,
    Args,
    Event,
    ShapedArgs,
    TimedEvent,
)
from perfscope.sources.traces.stream import FAILURES
from perfscope.tables.activity import ThreadSpans, join_spans
from perfscope.tables.columns import Float64, Int64
from perfscope.tables.kernel_classes import classify, classify_copy
from perfscope.tables.operator_details import Operand, OperatorDetails, OperatorInputs, TensorInput
from perfscope.tables.trace import (
    ABSENT,
    Collective,
    DeviceEvents,
    Events,
    HostSpans,
    Int8,
    Int32,
    Work,
    distinct,
    joined,
    no_spans,
)

#: No clock is that far: 146 years. The difference of two such times still fits into 64 bits.
LARGEST_US = 2.0**62 / NS_PER_US
#: CUPTI's overflowed records claim to last for years.
_LONGEST_NS = 7 * S_PER_DAY * NS_PER_S
_NAMES = read_data("operators")["operators"]
_OPERATOR = re.compile(rf"aten::(?:{'|'.join(_NAMES['waiting'])})\Z")
#: Libraries and Python's own files are not the script's; a name is ``file(line): function``.
_FUNCTION = re.compile(
    r"(?!torch/|<|nn\.Module|.*site-packages/|.*/lib/python\d|perfscope/|(?:contextlib|functools|threading|runpy)\.py\()"
    r".*\.py\(\d+\): "
)
_NEEDS_VALUES = re.compile("|".join(_NAMES["needing_values"]))
_LISTS = "TensorList"
_NO_TENSORS = ("", "Scalar", "ScalarList", "Int", "Double", "Bool", "Str", "None", "GenericList")
_Texts: TypeAlias = tuple[bytes, bytes, bytes, bytes]
_SPLIT = re.compile(r"\[[\d, ]*\]")

_OF_CALLERS = Events.OPERATORS, Events.FRAMES
_DETAILS = Events.SEQUENCES | Events.SHAPES
_NAME, _TS, _DURATION, _CATEGORY = map(attrgetter, ("name", "ts", "dur", "cat"))
_PROCESS, _THREAD = map(attrgetter, ("pid", "tid"))
_NO_ARGS = Args()
_E = TypeVar("_E", bound=Event | TimedEvent)

#: The columns of some events, with as many rows each.
_Block: TypeAlias = tuple[Int64 | Int32 | Int8, ...]


class InputTexts:
    """The inputs of operators as they are written, each distinct ones with a number."""

    def __init__(self) -> None:
        self._numbers: dict[_Texts, int] = {}

    def number(self, events: Sequence[Event]) -> Int64:
        """The number of the inputs of each operator, or ABSENT."""
        numbers = self._numbers
        column = np.full(len(events), ABSENT, np.int64)
        for row, event in enumerate(events):
            args = event.args
            if not isinstance(args, ShapedArgs) or not args.dims:
                continue
            values = bytes(args.values) if _are_values_needed(event.name) else b""
            texts = bytes(args.dims), bytes(args.strides), bytes(args.types), values
            column[row] = numbers.setdefault(texts, len(numbers))
        return column

    def details(self, sequence: Int64, forward_thread: Int64, inputs: Int64) -> OperatorDetails:
        """Finish the columns."""
        return OperatorDetails(sequence, forward_thread, inputs, tuple(map(_parse, self._numbers)))


@lru_cache(1 << 16)
def _are_values_needed(name: str) -> bool:
    return bool(_NEEDS_VALUES.search(name))


def _parse(texts: _Texts) -> OperatorInputs:
    dims, strides, types, values = (decode_list(text) for text in texts)
    operands = tuple(
        _operand(shape, _at(strides, index), _at(types, index)) if _is_tensor(_at(types, index)) else None
        for index, shape in enumerate(dims)
    )
    return OperatorInputs(operands, tuple(map(str, types)), tuple(map(str, values)))


def decode_list(text: bytes) -> list[object]:
    """A list as it is written; empty where it is none."""
    try:
        return msgspec.json.decode(text, type=list[object]) if text else []
    except FAILURES:
        return []


def _at(values: Sequence[object], index: int) -> object:
    return values[index] if index < len(values) else None


def _is_tensor(kind: object) -> bool:
    """Whether an input of a type is a tensor, or a list of them; a type that is not stated may be."""
    return kind is None or kind not in _NO_TENSORS


def _operand(shape: object, strides: object, kind: object) -> Operand:
    if not isinstance(shape, list):
        return None
    if kind == _LISTS or any(isinstance(size, list) for size in shape):
        steps = strides if isinstance(strides, list) else []
        return tuple(_tensor(inner, _at(steps, index), "") for index, inner in enumerate(shape))
    return _tensor(shape, strides, str(kind or ""))


def _tensor(shape: object, strides: object, element: str) -> TensorInput:
    return TensorInput(_sizes(shape), _sizes(strides), element)


def _sizes(values: object) -> tuple[int, ...]:
    return tuple(value for value in values if isinstance(value, int)) if isinstance(values, list) else ()


class Columns:
    """Collects events block by block, and finishes them as tables.

    Attributes:
        names: Every name met so far, with its number; in tables names are numbered in their order.
        groups: Of each process group that a kernel names: description, ranks and size as they are written.
        dropped: How many events were left out, by reason.
        repeated: How many device events were there twice.
    """

    def __init__(self, requested: Events) -> None:
        self.names: dict[str, int] = {}
        self.collectives: list[Collective] = []
        self.groups: dict[str, tuple[str, str, int]] = {}
        self.dropped = {"no time": 0, "a negative duration": 0, "a duration of more than seven days": 0}
        self.requested = requested
        self.repeated = 0
        self._needs_operator_times = Events.OPERATOR_TIMES in requested
        self._collective_numbers: dict[Collective, int] = {}
        self._texts: dict[str, int] = {}
        self._grids: dict[bytes, int] = {}
        self._inputs = InputTexts()
        self._tables: dict[Events, HostSpans] = {}
        self._device: list[_Block] = []
        self._operator_times: list[ThreadSpans] = []
        self._host: dict[Events, list[_Block]] = {kind: [] for kind in Events if kind is not Events.DEVICE}

    def add(self, events: Sequence[Event]) -> None:
        """Add the requested ones of some events."""
        for category in dict.fromkeys(map(_CATEGORY, events)):
            if category not in KIND:
                continue
            kind, members = KIND[category], [event for event in events if event.cat == category and event.ph == "X"]
            if kind not in self.requested and not (kind is Events.OPERATORS and self._needs_operator_times):
                if kind in _OF_CALLERS and Events.CALLERS in self.requested:
                    self._add_host([event for event in members if is_caller(event.name, kind)], kind)
                continue
            if kind is Events.DEVICE:
                self._add_device(members, DEVICE_CATEGORIES[category])
            else:
                self._add_host(members, kind)

    def add_timed(self, events: Sequence[TimedEvent], kind: Events) -> None:
        """Add operators or Python functions of which only times, or only the callers among them, are requested."""
        events, start_ns, duration_ns = self._times(events)
        thread = self._identities(events, _THREAD)
        if kind is Events.OPERATORS and self._needs_operator_times:
            self._operator_times.append(join_spans([ThreadSpans(start_ns, start_ns + duration_ns, thread)]))
        if Events.CALLERS in self.requested:
            callers = {name for name in set(map(_NAME, events)) if is_caller(name, kind)}
            rows = [row for row, event in enumerate(events) if event.name in callers] if callers else []
            names, unknown = self._numbered([events[row] for row in rows]), np.full(len(rows), ABSENT, np.int64)
            self._host[kind].append((names, start_ns[rows], duration_ns[rows], unknown, thread[rows], unknown, unknown))

    @cached_property
    def sorted_names(self) -> list[str]:
        """The names in order, so that nothing depends on where a file is divided; no event may be added afterwards."""
        return sorted(self.names)

    @cached_property
    def _ranks(self) -> Int32:
        ranks = np.empty(len(self.names), np.int32)
        ranks[[self.names[name] for name in self.sorted_names]] = np.arange(len(ranks), dtype=np.int32)
        return ranks

    def device_events(self) -> DeviceEvents:
        """Finish the device's table."""
        columns = self._without_repetitions(_in_order(self._device, width=11, by=2))
        names, categories, start_ns, duration_ns, *others = columns
        name, (*_, collective, _) = self._ranks[names], others
        work = _classify_work(self.sorted_names, name, categories, collective)
        return DeviceEvents(name, start_ns, duration_ns, work, *others)

    def _without_repetitions(self, columns: list[Int64]) -> list[Int64]:
        """Each event once: some files contain those of a launch twice."""
        names, _, start_ns, duration_ns, device, stream, correlation, *_ = columns
        is_same = np.zeros(len(start_ns), np.bool_)
        is_same[1:] = np.diff(start_ns) == 0
        is_same[:-1] |= is_same[1:]
        rows = np.flatnonzero(is_same & (correlation != ABSENT))
        met: set[tuple[int, ...]] = set()
        repeated = []
        identities = (names, start_ns, duration_ns, device, stream, correlation)
        for row, identity in zip(
            rows, zip(*(column[rows].tolist() for column in identities), strict=True), strict=True
        ):
            if identity in met:
                repeated.append(row)
            met.add(identity)
        self.repeated = len(repeated)
        return [np.delete(column, repeated) for column in columns] if repeated else columns

    def host_spans(self, kind: Events) -> HostSpans:
        """Finish one of the host's tables."""
        if kind not in self._tables:
            names, *columns = _in_order(self._host[kind], width=7, by=1)
            self._tables[kind] = HostSpans(self._ranks[names], *columns[:6])
        return self._tables[kind]

    def operator_details(self) -> OperatorDetails | None:
        """See ``Trace.details``."""
        if not self.requested & _DETAILS:
            return None
        return self._inputs.details(*_in_order(self._host[Events.OPERATORS], width=10, by=1)[7:])

    def operators(self) -> HostSpans:
        """The operators, where they are requested: others were collected for their times alone."""
        operators = self.host_spans(Events.OPERATORS)
        return operators if Events.OPERATORS in self.requested else operators.take(np.zeros(0, np.int64))

    def callers(self) -> HostSpans:
        """See ``Trace.callers``."""
        if Events.CALLERS not in self.requested:
            return no_spans()
        chosen = []
        for kind in _OF_CALLERS:
            spans = self.host_spans(kind)
            are_callers = np.array([is_caller(name, kind) for name in self.sorted_names], np.bool_)
            chosen.append(spans.take(are_callers[spans.name]))
        callers = joined(*chosen)
        unknown = np.full(len(callers), ABSENT, np.int64)  # add_timed does not read these
        return replace(callers, process=unknown, correlation=unknown, external_id=unknown)

    def in_operators(self) -> ThreadSpans | None:
        """See ``Trace.in_operators``."""
        if not self.requested & (Events.OPERATORS | Events.OPERATOR_TIMES):
            return None
        operators = self.host_spans(Events.OPERATORS)
        own = ThreadSpans(operators.start_ns, operators.end_ns, operators.thread)
        return join_spans([*self._operator_times, own])

    def _add_host(self, events: Sequence[Event], kind: Events) -> None:
        events, start_ns, duration_ns = self._times(events)
        args = _arguments_of(events)
        block: _Block = (
            self._numbered(events),
            start_ns,
            duration_ns,
            self._identities(events, _PROCESS),
            self._identities(events, _THREAD),
            _integers(args, "correlation"),
            _external_ids(args),
        )
        if kind is Events.OPERATORS and self.requested & _DETAILS:
            numbers = (_integers(args, "number"), _integers(args, "forward_thread"))
            block = (*block, *numbers, self._inputs.number(events))
        self._host[kind].append(block)

    def _add_device(self, events: Sequence[Event], category: int) -> None:
        events, start_ns, duration_ns = self._times(events)
        args = _arguments_of(events)
        self._device.append(
            (
                self._numbered(events),
                np.full(len(events), category, np.int8),
                start_ns,
                duration_ns,
                _with_fallback(_integers(args, "device"), partial(self._identities, events, _PROCESS)),
                _with_fallback(_integers(args, "stream"), partial(self._identities, events, _THREAD)),
                _integers(args, "correlation"),
                _external_ids(args),
                _integers(args, "bytes"),
                np.array([self._collective(arguments) for arguments in args], np.int64),
                self._grids_of(args),
            )
        )

    def _times(self, events: Sequence[_E]) -> tuple[Sequence[_E], Int64, Int64]:
        """The events with a possible time and duration, and these in nanoseconds."""
        timed: Sequence[_E] = events
        if None in map(_TS, events) or None in map(_DURATION, events):
            timed = [event for event in events if event.ts is not None and event.dur is not None]
        start_us = np.fromiter(map(_TS, timed), np.float64, len(timed))
        is_time = np.abs(start_us) < LARGEST_US
        if not is_time.all():
            timed, start_us = [timed[row] for row in np.flatnonzero(is_time).tolist()], start_us[is_time]
        start_ns = to_ns(start_us)
        self.dropped["no time"] += len(events) - len(timed)
        duration_us = np.fromiter(map(_DURATION, timed), np.float64, len(timed))
        negative, endless = duration_us < 0, duration_us > _LONGEST_NS / NS_PER_US
        if not negative.any() and not endless.any():
            return timed, start_ns, to_ns(duration_us)
        self.dropped["a negative duration"] += int(negative.sum())
        self.dropped["a duration of more than seven days"] += int(endless.sum())
        is_possible = ~(negative | endless)
        possible = [timed[index] for index in np.flatnonzero(is_possible).tolist()]
        return possible, start_ns[is_possible], to_ns(duration_us[is_possible])

    def _numbered(self, events: Sequence[Event | TimedEvent]) -> Int32:
        names, texts = self.names, list(map(_NAME, events))
        for name in dict.fromkeys(texts):
            names.setdefault(name, len(names))
        return np.fromiter(map(names.__getitem__, texts), np.int32, len(texts))

    def _identities(self, events: Sequence[_E], of: Callable[[_E], int | str | None]) -> Int64:
        """Process or thread ids; a text that is no number gets a negative number."""
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

    def _grids_of(self, args: Sequence[Args]) -> Int64:
        """The checksum of each grid as it is written, without spaces, so that ranks can be compared."""
        checksums = self._grids
        texts = [bytes(arguments.grid) for arguments in args]
        for text in set(texts).difference(checksums):
            checksums[text] = crc32(b"".join(text.split())) if text else ABSENT
        return np.fromiter(map(checksums.__getitem__, texts), np.int64, len(texts))

    def _collective(self, args: Args) -> int:
        if args.operation is None and args.group is None:
            return ABSENT
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
            in_split=_split(args.in_split),
            out_split=_split(args.out_split),
        )
        number = self._collective_numbers.setdefault(collective, len(self.collectives))
        if number == len(self.collectives):
            self.collectives.append(collective)
        return number


@lru_cache(1 << 16)
def is_caller(name: str, kind: Events) -> bool:
    """Whether an event of this name tells who made a call."""
    return bool(_OPERATOR.match(name) if kind is Events.OPERATORS else _FUNCTION.match(name))


def _split(text: str | None) -> tuple[int, ...] | None:
    """The numbers of a list as PyTorch writes it, ``[3, 5]``; None where it is not stated, or shortened by dots."""
    if text is None or not _SPLIT.fullmatch(text):
        return None
    return tuple(int(number) for number in text.strip("[]").split(",") if number.strip())


def _in_order(blocks: Sequence[_Block], *, width: int, by: int) -> list[Int64]:
    if not blocks:
        return [np.zeros(0, np.int64) for _ in range(width)]
    columns: list[Int64] = [np.concatenate(parts) for parts in zip(*blocks, strict=True)]
    order = np.argsort(columns[by], kind="stable")
    return [column[order] for column in columns]


def to_ns(times_us: Float64) -> Int64:
    """Doubles of microseconds to nanoseconds; the fraction is taken off first, so that no product is rounded."""
    microseconds = np.floor(times_us)
    fraction = np.rint((times_us - microseconds) * NS_PER_US)
    return np.asarray(microseconds.astype(np.int64) * NS_PER_US + fraction.astype(np.int64))


def _classify_work(names: Sequence[str], name: Int32, category: Int64, collective: Int64) -> Int8:
    """What device events do: a value of Work each."""
    of_kernel, of_copy = np.zeros(len(names), np.int8), np.zeros(len(names), np.int8)
    for number in distinct(name):
        text = names[number]
        of_kernel[number], of_copy[number] = classify(text), classify_copy(text)
    work: Int8 = np.where(category == KERNEL, of_kernel[name], of_copy[name])
    work[category == FILL] = Work.COPY
    work[(category == KERNEL) & (collective != ABSENT) & (work != Work.FUSED)] = Work.COMMUNICATION
    return work


def _integers(records: Sequence[Args], name: str) -> Int64:
    try:
        return np.fromiter(map(attrgetter(name), records), np.int64, len(records))
    except (TypeError, ValueError, OverflowError):
        return np.array([_fitting(getattr(record, name)) for record in records], np.int64)


def _fitting(value: int | str | None) -> int:
    """A value as an integer of a column, or ABSENT. ROCm writes streams as ``0x0``."""
    try:
        if isinstance(value, str):
            number = int(value, 16 if value.startswith("0x") else 10)
        else:
            number = ABSENT if value is None else value
    except ValueError:
        return ABSENT
    return number if abs(number) < 1 << 63 else ABSENT


def _arguments_of(events: Sequence[Event]) -> list[Args]:
    return [event.args or _NO_ARGS for event in events]


def _external_ids(args: Sequence[Args]) -> Int64:
    return _with_fallback(_integers(args, "external_id"), partial(_integers, args, "old_external_id"))


def _with_fallback(column: Int64, fallback: Callable[[], Int64]) -> Int64:
    absent = column == ABSENT
    return np.where(absent, fallback(), column) if absent.any() else column
