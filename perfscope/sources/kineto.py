"""The raw keys of a torch.profiler (Kineto) trace, and its events as columns.

Events are decoded straight into typed records; no dictionary is made for any of them. Times are microseconds with up to
three decimals in the file and integer nanoseconds here. A double holds them exactly below 2**43 us; older exporters
write microseconds since 1970, which are above that, and are read digit by digit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec
import numpy as np

from perfscope.kernel_classes import classify, classify_copy
from perfscope.tables import Int64
from perfscope.tables.trace import ABSENT, Collective, DeviceEvents, Events, HostSpans, Work

#: Below this a double of microseconds keeps every nanosecond.
_EXACT_BELOW_US = 2.0**43
#: CUPTI's overflowed records claim to last for years.
_LONGEST_NS = 7 * 86400 * 10**9

KERNEL, COPY, FILL = range(3)
_DEVICE_CATEGORIES = {
    "kernel": KERNEL,
    "gpu_memcpy": COPY,
    "gpu_memset": FILL,
    "Kernel": KERNEL,
    "Memcpy": COPY,
    "Memset": FILL,
}
_CALL_CATEGORIES = (
    "cuda_runtime", "cuda_driver", "Runtime", "hip_runtime", "hip_driver", "xpu_runtime", "xpu_driver",
    "mtia_runtime", "privateuse1_runtime", "privateuse1_driver",
)  # fmt: skip
_KIND = {
    **dict.fromkeys(_DEVICE_CATEGORIES, Events.DEVICE),
    **dict.fromkeys(_CALL_CATEGORIES, Events.CALLS),
    "user_annotation": Events.ANNOTATIONS,
    "ProfilerStep": Events.ANNOTATIONS,
    "cpu_op": Events.OPERATORS,
    "Operator": Events.OPERATORS,
}
#: What the autograd engine calls the operator around each node of the backward pass.
_BACKWARD_NODE = "autograd::engine::evaluate_function"


class Args(msgspec.Struct, gc=False, frozen=True, rename={
    "external_id": "External id", "external_id_of_old": "external id", "operation": "Collective name",
    "group": "Process Group Name", "description": "Process Group Description", "ranks": "Process Group Ranks",
    "group_size": "Group size", "in_elements": "In msg nelems", "out_elements": "Out msg nelems", "sequence": "Seq",
    "source": "Src Rank", "destination": "Dst Rank",
}):  # fmt: skip
    """The arguments of an event that an analysis may need."""

    external_id: int | None = None
    correlation: int | None = None
    device: int | None = None
    stream: int | None = None
    bytes: int | None = None
    operation: str | None = None
    group: str | None = None
    description: str | None = None
    ranks: str | None = None
    group_size: int | None = None
    dtype: str | None = None
    in_elements: int | None = None
    out_elements: int | None = None
    sequence: int | None = None
    source: int | None = None
    destination: int | None = None
    external_id_of_old: int | None = None


_NO_ARGS = Args()


class Event(msgspec.Struct, gc=False):
    """One event; its time is a double, exact below 2**43 us."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: float | None = None
    dur: float | None = None
    args: Args | None = None


class EventInDigits(msgspec.Struct, gc=False):
    """One event of an exporter whose microseconds do not fit a double."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: msgspec.Raw = msgspec.Raw(b"null")
    dur: float | None = None
    args: Args | None = None


class TimesDoNotFit(Exception):
    """A time is too large for a double: decode again, in digits."""


class Group(msgspec.Struct):
    """A process group in the trace's head."""

    pg_name: str = ""
    pg_desc: str = ""
    pg_size: int = 0
    ranks: list[int] = []


class DistributedInfo(msgspec.Struct):
    """What the profiler knew of torch.distributed."""

    rank: int | None = None
    world_size: int | None = None
    backend: str = ""
    pg_config: list[Group] = []


class Device(msgspec.Struct):
    """A GPU of the machine."""

    id: int = 0
    name: str = ""


class OurMetadata(msgspec.Struct):
    """What the hooks added to the trace."""

    rank: int | None = None
    world_size: int | None = None


class Columns:
    """Collects events as columns, block by block, and finishes them as tables."""

    def __init__(self, wanted: Events) -> None:
        self.wanted = wanted
        self.codes: dict[str, int] = {}
        self.collectives: list[Collective] = []
        self.collective_codes: dict[Collective, int] = {}
        self.groups: dict[str, tuple[str, str, int]] = {}
        self.dropped = {"no time": 0, "a negative duration": 0, "a duration of more than seven days": 0}
        self._device: list[tuple[Any, ...]] = []
        self._host: dict[Events, list[tuple[Any, ...]]] = {kind: [] for kind in Events if kind != Events.DEVICE}
        self._texts: dict[str, int] = {}

    def add(self, events: Iterable[Event | EventInDigits]) -> None:
        """Take in one block of events.

        Raises:
            TimesDoNotFit: A time is too large for the doubles of Event.
        """
        by_category: dict[str, list[Any]] = {}
        for event in events:
            if event.ph == "X":
                by_category.setdefault(event.cat, []).append(event)
        for category, members in by_category.items():
            kind = _KIND.get(category)
            if kind is None or kind not in self.wanted:
                continue
            if kind is Events.DEVICE:
                self._add_device(members, _DEVICE_CATEGORIES[category])
            else:
                self._add_host(members, kind)
        if Events.BACKWARD in self.wanted:
            nodes = [event for event in by_category.get("cpu_op", ()) if event.name.startswith(_BACKWARD_NODE)]
            self._add_host(nodes, Events.BACKWARD)

    def _times(self, events: Sequence[Any]) -> tuple[Sequence[Any], Int64, Int64]:
        whole = [event for event in events if event.ts is not None and event.dur is not None]
        if whole and isinstance(whole[0].ts, msgspec.Raw):
            start = [_digits_to_ns(event.ts) for event in whole]
            known = [value is not None for value in start]
            whole = [event for event, is_known in zip(whole, known, strict=True) if is_known]
            start_ns = np.array([value for value in start if value is not None], np.int64)
        else:
            start_us = np.fromiter((event.ts for event in whole), np.float64, len(whole))
            if len(start_us) and np.abs(start_us).max() >= _EXACT_BELOW_US:
                raise TimesDoNotFit
            start_ns = _to_ns(start_us)
        self.dropped["no time"] += len(events) - len(whole)
        duration_us = np.fromiter((event.dur for event in whole), np.float64, len(whole))
        negative, endless = duration_us < 0, duration_us > _LONGEST_NS / 1000
        self.dropped["a negative duration"] += int(negative.sum())
        self.dropped["a duration of more than seven days"] += int(endless.sum())
        kept = ~(negative | endless)
        if not kept.all():
            whole = [whole[index] for index in np.flatnonzero(kept)]
            start_ns, duration_us = start_ns[kept], duration_us[kept]
        return whole, start_ns, _to_ns(duration_us)

    def _names(self, events: Sequence[Any]) -> Any:  # noqa: ANN401 - an array
        codes = self.codes
        return np.fromiter((codes.setdefault(event.name, len(codes)) for event in events), np.int32, len(events))

    def _add_host(self, events: Sequence[Any], kind: Events) -> None:
        events, start_ns, duration_ns = self._times(events)
        args = [event.args or _NO_ARGS for event in events]
        self._host[kind].append(
            (
                self._names(events),
                start_ns,
                duration_ns,
                self._numbers([event.pid for event in events]),
                self._numbers([event.tid for event in events]),
                _integers([arg.correlation for arg in args]),
                _integers([_external_id(arg) for arg in args]),
            )
        )

    def _add_device(self, events: Sequence[Any], category: int) -> None:
        events, start_ns, duration_ns = self._times(events)
        args = [event.args or _NO_ARGS for event in events]
        self._device.append(
            (
                self._names(events),
                np.full(len(events), category, np.int8),
                start_ns,
                duration_ns,
                self._numbers([e.pid if a.device is None else a.device for e, a in zip(events, args, strict=True)]),
                self._numbers([e.tid if a.stream is None else a.stream for e, a in zip(events, args, strict=True)]),
                _integers([arg.correlation for arg in args]),
                _integers([_external_id(arg) for arg in args]),
                _integers([arg.bytes for arg in args]),
                np.fromiter((self._collective(arg) for arg in args), np.int64, len(args)),
            )
        )

    def _numbers(self, values: Sequence[int | str | None]) -> Int64:
        """Process and thread ids; a text that is no number gets a negative one."""
        return _integers([value if isinstance(value, int) else self._number(value) for value in values])

    def _number(self, value: str | None) -> int:
        if value is None:
            return ABSENT
        try:
            return int(value)
        except ValueError:
            return -2 - self._texts.setdefault(value, len(self._texts))

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
        )
        code = self.collective_codes.setdefault(collective, len(self.collectives))
        if code == len(self.collectives):
            self.collectives.append(collective)
        return code

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

    def _work(self, name: Any, category: Any, collective: Any) -> Any:  # noqa: ANN401 - arrays
        used = set(np.unique(name).tolist())
        texts = list(self.codes)
        of_kernel, of_copy = np.zeros(len(texts), np.int8), np.zeros(len(texts), np.int8)
        for code in used:
            of_kernel[code], of_copy[code] = classify(texts[code]), classify_copy(texts[code])
        work = np.where(category == KERNEL, of_kernel[name], of_copy[name])
        work[category == FILL] = Work.COPY
        stated = (category == KERNEL) & (collective != ABSENT) & (work != Work.FUSED)
        work[stated] = Work.COMMUNICATION
        return work

    def host_spans(self, kind: Events) -> HostSpans:
        """One of the host's tables, in the order of start."""
        return HostSpans(*_in_order(self._host[kind], (np.int32, *[np.int64] * 6), by=1))


def _in_order(blocks: Sequence[tuple[Any, ...]], types: Sequence[Any], by: int) -> list[Any]:
    if not blocks:
        return [np.zeros(0, kind) for kind in types]
    columns = [np.concatenate(parts) for parts in zip(*blocks, strict=True)]
    order = np.argsort(columns[by], kind="stable")
    return [column[order] for column in columns]


def _external_id(args: Args) -> int | None:
    return args.external_id if args.external_id is not None else args.external_id_of_old


def _integers(values: Sequence[int | None]) -> Int64:
    try:
        return np.fromiter((ABSENT if value is None else value for value in values), np.int64, len(values))
    except OverflowError:
        return np.array([value if value is not None and abs(value) < 1 << 63 else ABSENT for value in values], np.int64)


def _to_ns(microseconds: Any) -> Int64:  # noqa: ANN401 - an array
    """Doubles of microseconds to nanoseconds; the fraction is taken off first, so that no product is rounded."""
    whole = np.floor(microseconds)
    fraction = np.rint((microseconds - whole) * 1000)
    return np.asarray(whole.astype(np.int64) * 1000 + fraction.astype(np.int64))


def _digits_to_ns(raw: msgspec.Raw) -> int | None:
    """Microseconds as they are written to nanoseconds; None where they are no number or beyond 292 years."""
    text = bytes(raw).strip(b'"')
    whole, _, fraction = text.partition(b".")
    if whole.isdigit() and (not fraction or fraction.isdigit()) and len(fraction) <= 3:  # noqa: PLR2004 - a thousandth
        value = int(whole) * 1000 + int(fraction.ljust(3, b"0"))
    else:
        try:
            value = int((Decimal(text.decode("ascii", "replace")) * 1000).to_integral_value())
        except (InvalidOperation, OverflowError, ValueError):
            return None
    return value if abs(value) < 1 << 62 else None
