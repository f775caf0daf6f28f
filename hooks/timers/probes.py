"""Times forward passes and the optimizer on the device in some steps, without a profiler and without waiting.

Ranks that train together take equally long for a step, and a slow device hides in the others' waits. Forward passes of
replicas and the optimizer's update hold no exchange: where they take longer on one rank, its device is slow, or has
more to do. CUDA events go around them in one step after each turn of the thread that writes records. The thread reads
them in its next turn, when the device has long passed them.
"""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns as _now_ns
from time import process_time_ns as _process_ns
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from perfscope.constants import NS_PER_MS
from perfscope.hooks.guard import is_of_signal

if TYPE_CHECKING:
    from perfscope.wire.host import DeviceProbe

_Method = TypeVar("_Method", bound=Callable[..., object])
#: One step in so many, a power of two, is probed, has its passes timed, and its counters read: the events of a probe
#: cost 100 us on the host of an H200.
ONE_IN = 16
#: Steps whose events the device has not reached yet; beyond that the oldest is given up, so that memory stays bounded.
MOST_PENDING = 16
#: Passes of one step that are timed; with more of them the step is left out.
_MOST_PASSES = 32
#: Modules that FSDP 2 shards, of which the first are timed.
_MOST_UNITS = 8


class CudaEvent(Protocol):
    """What is used of torch.cuda.Event."""

    def record(self) -> None:
        """Mark this moment in the current stream."""

    def query(self) -> bool:
        """Whether the device has reached it."""

    def elapsed_time(self, end: CudaEvent) -> float:
        """Milliseconds on the device to a later event."""


def _never_fails(method: _Method) -> _Method:
    """Let a method that training calls raise nothing: a failure ends the probes."""

    @functools.wraps(method)
    def call(self: DeviceProbes, *args: object) -> object:
        try:
            return method(self, *args)
        except BaseException as error:  # the hooks' outer edge, as in the guard
            self.is_on, self.next_step = False, sys.maxsize
            if is_of_signal(error):
                raise
            return None

    return cast("_Method", call)


class ShardedUnits:
    """The methods of FSDP 2 around the forward pass of a module: its weights are there after the first.

    FSDP looks its methods up in their class at each call: they are replaced for a probed step only.
    """

    def __init__(self, group_class: Any) -> None:
        self._class = group_class
        self._originals: dict[str, Callable[..., Any]] = {}

    def watch(self, on_begin: Callable[[object], None], on_end: Callable[[object], None]) -> None:
        """Tell of each module's parameters before and after its forward pass; the functions raise nothing."""
        begin, end = (getattr(self._class, name, None) for name in ("pre_forward", "post_forward"))
        if self._originals or begin is None or end is None:
            return

        @functools.wraps(begin)
        def pre_forward(group: Any, *args: object, **kwargs: object) -> Any:
            result = begin(group, *args, **kwargs)
            on_begin(group)
            return result

        @functools.wraps(end)
        def post_forward(group: Any, *args: object, **kwargs: object) -> Any:
            on_end(group)
            return end(group, *args, **kwargs)

        self._originals = {"pre_forward": begin, "post_forward": end}
        self._class.pre_forward, self._class.post_forward = pre_forward, post_forward

    def leave(self) -> None:
        """Put the methods back."""
        for name, original in self._originals.items():
            setattr(self._class, name, original)
        self._originals = {}


class _Launch:
    """Work that the host launches, and the events around it."""

    __slots__ = ("began_ns", "begin", "end", "ended_ns", "is_ahead")

    def __init__(self, begin: CudaEvent) -> None:
        self.begin = begin
        self.end: CudaEvent | None = None
        self.began_ns = self.ended_ns = _now_ns()
        self.is_ahead = False

    def finish(self, end: CudaEvent) -> None:
        self.end = end
        self.is_ahead = not self.begin.query()
        self.ended_ns = _now_ns()

    def waited_ns(self, step: CudaEvent, step_began_ns: int) -> int:
        """How long the device may have waited for the host in it: from when the device came to it, at the earliest."""
        if self.is_ahead:
            return 0
        reached_ns = step_began_ns + _between_ns(step, self.begin)
        return max(0, self.ended_ns - max(self.began_ns, reached_ns))


class _Moments:
    __slots__ = ("began_ns", "begin", "forwards", "idle_ns", "process_ns", "step", "units", "update")

    def __init__(self, begin: CudaEvent) -> None:
        self.begin = begin
        self.began_ns = _now_ns()
        self.process_ns = _process_ns()
        self.idle_ns = 0
        self.step = 0
        self.forwards: list[_Launch] = []
        self.units: list[_Launch] = []
        self.update: _Launch | None = None

    def events(self) -> list[CudaEvent]:
        """All of them."""
        launches = [*self.forwards, *self.units, *([] if self.update is None else [self.update])]
        marks = (event for launch in launches for event in (launch.begin, launch.end))
        return [self.begin, *(event for event in marks if event is not None)]


class DeviceProbes:
    """The probes of one process; hooks ask ``is_on`` before they call anything else.

    From ``next_step`` on the next one may be probed; it is very large where there is no device.
    """

    def __init__(self) -> None:
        self.is_on = False
        self.next_step = sys.maxsize
        self.sharded: ShardedUnits | None = None
        self._unit: tuple[object, _Launch] | None = None
        self._make_event: Callable[[], CudaEvent] | None = None
        self._is_capturing: Callable[[], bool] = bool
        self._make_probe: Callable[..., DeviceProbe] | None = None
        self._moments: _Moments | None = None
        self._pending: deque[_Moments] = deque()
        #: Events that were read, to be recorded again; the thread that reads adds them.
        self._unused: deque[CudaEvent] = deque()

    def begin(self, make_probe: Callable[..., DeviceProbe]) -> None:
        """Probe steps from now on, where a device is in use.

        A process that never trains has this module for the hooks of optimizers, and not that of ``make_probe``.
        """
        self._make_probe = make_probe
        cuda: Any = sys.modules["torch"].cuda
        if self._make_event is None and cuda.is_initialized():
            self._make_event = lambda: cuda.Event(enable_timing=True)
            self._is_capturing = getattr(cuda, "is_current_stream_capturing", bool)
            self.next_step = 0

    @_never_fails
    def start(self, step: int) -> None:
        """A step is about to begin that will be probed."""
        self.next_step = step + ONE_IN
        event = self._mark()
        if event is not None:
            self._moments = _Moments(event)
            self.is_on = True
            if self.sharded is not None:
                self.sharded.watch(self._on_unit, self._on_unit_end)

    @_never_fails
    def on_forward(self) -> Callable[[], None] | None:
        """A forward pass is about to be launched; returns what to call when it was."""
        moments = self._moments
        event = self._mark()
        if moments is None or event is None or len(moments.forwards) >= _MOST_PASSES:
            self.discard()
            return None
        moments.forwards.append(_Launch(event))
        return self.on_forward_end

    @_never_fails
    def on_forward_end(self) -> None:
        """It was launched."""
        event, moments = self._mark(), self._moments
        if moments is not None and moments.forwards and event is not None:
            moments.forwards[-1].finish(event)

    @_never_fails
    def _on_unit(self, group: object) -> None:
        """The weights of a module are there; one that holds others is left out."""
        moments = self._moments
        event = self._mark() if moments is not None and len(moments.units) < _MOST_UNITS else None
        self._unit = None if event is None else (group, _Launch(event))

    @_never_fails
    def _on_unit_end(self, group: object) -> None:
        """A module was launched."""
        unit, moments, self._unit = self._unit, self._moments, None
        if unit is not None and unit[0] is group and moments is not None:
            event = self._mark()
            if event is not None:
                unit[1].finish(event)
                moments.units.append(unit[1])

    @_never_fails
    def on_update(self) -> None:
        """The optimizer is about to be launched, or a part of it."""
        moments = self._moments
        if moments is not None and moments.update is None:
            event = self._mark()
            moments.update = None if event is None else _Launch(event)

    @_never_fails
    def on_update_end(self) -> None:
        """The optimizer was launched, or a part of it."""
        update = None if self._moments is None else self._moments.update
        if update is not None:
            if update.end is not None:
                self._unused.append(update.end)
            event = self._mark()
            if event is not None:
                update.finish(event)

    @_never_fails
    def finish(self, step: int) -> None:
        """The probed step was launched."""
        moments = self._moments
        self.discard()
        if moments is not None:
            moments.step = step
            moments.idle_ns = max(0, _now_ns() - moments.began_ns - (_process_ns() - moments.process_ns))
            self._pending.append(moments)
            while len(self._pending) > MOST_PENDING:
                self._pending.popleft()

    def discard(self) -> None:
        """Something else happened in the step."""
        self._moments, self.is_on = None, False
        if self.sharded is not None:
            self.sharded.leave()

    def read(self) -> dict[str, DeviceProbe]:
        """The last probe that the device has passed, as a field of StepRecord; in the thread that writes records."""
        probe = None
        while self._pending:
            last = self._pending[0].update
            if last is not None and last.end is not None and not last.end.query():
                break
            moments = self._pending.popleft()
            probe = _to_probe(moments, self._make_probe) or probe
            self._unused.extend(moments.events())
        return {} if probe is None else {"probe": probe}

    def _mark(self) -> CudaEvent | None:
        """The moment that the device has now been given work for; None inside a CUDA graph."""
        if self._make_event is None or self._is_capturing():
            return None
        event = self._unused.popleft() if self._unused else self._make_event()
        event.record()
        return event


def _to_probe(moments: _Moments, make_probe: Callable[..., DeviceProbe] | None) -> DeviceProbe | None:
    update = moments.update
    if update is None or update.end is None or make_probe is None:
        return None
    first = moments.forwards[0].begin if moments.forwards else moments.begin
    timed = [(launch, launch.end) for launch in moments.forwards if launch.end is not None]
    forward_ns, forward_launch_ns = None, None
    if timed and len(timed) == len(moments.forwards):
        forward_ns = sum(_between_ns(launch.begin, end) for launch, end in timed)
        forward_launch_ns = sum(launch.waited_ns(moments.begin, moments.began_ns) for launch, _ in timed)
    return make_probe(
        step=moments.step,
        before_ns=_between_ns(moments.begin, first) if moments.forwards else 0,
        forward_ns=forward_ns,
        backward_ns=_between_ns(first, update.begin) - (forward_ns or 0),
        update_ns=_between_ns(update.begin, update.end),
        forward_launch_ns=forward_launch_ns,
        update_launch_ns=update.waited_ns(moments.begin, moments.began_ns),
        idle_ns=moments.idle_ns,
        units_ns=sum(_between_ns(unit.begin, unit.end) for unit in moments.units if unit.end) or None,
        units_launch_ns=sum(unit.waited_ns(moments.begin, moments.began_ns) for unit in moments.units)
        if moments.units
        else None,
    )


def _between_ns(begin: CudaEvent, end: CudaEvent) -> int:
    return round(begin.elapsed_time(end) * NS_PER_MS)


#: The probes of this process.
PROBES = DeviceProbes()
