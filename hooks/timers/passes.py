"""Times every forward and backward pass of a micro-batch in some steps, without waiting for the device.

A pair of CUDA events goes around each pass; they are read steps later, when the device has long passed them. A pass is
timed on the device from when its inputs have arrived to when its last kernel has run. On a CPU the host's clock does.

A device that starts a pass before all of it is launched may be launch-bound, until the launch is done at most. The
events give the start of each pass on the device's clock. The host's clock bounds it: no pass starts before its launch
begins. If the device has not started it when the launch is done, it starts later.

A step has many passes, each of which takes microseconds of the host. They are timed in the first steps, for jobs that
end soon, and then in one step of 16: ranks time the same steps.
"""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass
from time import monotonic_ns as _now_ns
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from perfscope.constants import NS_PER_MS
from perfscope.hooks.timers.untimed_passes import UNTIMED
from perfscope.wire.passes import MicroBatchRecord, PassRange

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

#: Steps whose events the device has not reached yet; beyond that the oldest is given up, so that memory stays bounded.
_MAX_PENDING = 16
#: The passes of so many steps are timed, and then of one step in so many: a power of two.
_FIRST_STEPS, _PERIOD = 32, 16


class CudaEvent(Protocol):
    """What is used of torch.cuda.Event."""

    def record(self) -> None:
        """Mark this moment in the current stream."""

    def query(self) -> bool:
        """Whether the device has reached it."""

    def elapsed_time(self, end: CudaEvent) -> float:
        """Milliseconds on the device to a later event."""


#: A moment: an event of the device, or nanoseconds of the host's clock.
Mark: TypeAlias = "CudaEvent | int"
#: The fields of a ``Pass``. A step makes many, of which each call of a function takes microseconds: none for a tuple.
Identity: TypeAlias = "tuple[str, int, int, int, int, int]"
#: A pass between two moments: when its launch began, on the host's clock; the first moment, which is None inside a CUDA
#: graph, where no event is recorded; and its range.
TimedPass: TypeAlias = "tuple[Identity, int, Mark | None, AbstractContextManager[object] | None]"


class Pass(NamedTuple):
    """One pass that is about to run.

    Attributes:
        kind: ``F``, ``B`` (a whole backward pass), ``I`` or ``W`` (gradients of the input or of the weights alone).
        microbatch: Which micro-batch, from 0.
        stage: Its virtual stage, and ``stages`` their number.
        device: The rank's position in the pipeline, and ``devices`` its length.
    """

    kind: str
    microbatch: int
    stage: int
    stages: int
    device: int
    devices: int

    @property
    def range_name(self) -> str:
        """The name of the range in a trace."""
        return PassRange(self.kind, self.microbatch, self.stage, self.device, self.devices).name


class _FinishedPass(NamedTuple):
    """A pass that was launched.

    Attributes:
        began_ns: When its launch began, on the host's clock, and ``ended_ns`` when all of it was launched.
        is_reached: Whether the device had come to it by then.
    """

    identity: Identity
    begin: Mark
    end: Mark
    began_ns: int
    ended_ns: int
    is_reached: bool


@dataclass
class _Step:
    number: int
    passes: list[_FinishedPass]
    has_ranges: bool


class PassTimer:
    """The passes of one rank.

    Attributes:
        lost: Steps that were given up because the device never reached their events.
        is_in_use: Whether there are passes of the step that runs, or passes to be read.
        untimed: The bits of a step's number of which none is set where its passes are timed: a power of two, less one.
    """

    def __init__(self) -> None:
        self.lost = 0
        self.is_in_use = False
        self.untimed = 0
        UNTIMED.rest, UNTIMED.forwards = False, 0
        #: Parts of the model on this rank, through each of which a micro-batch runs forward.
        self._chunks = 1
        #: Calls of the model are as many as micro-batches.
        self._is_called_once = False
        self._current: list[tuple[Identity, Mark, Mark, int, int, bool]] = []
        self._pending: deque[_Step] = deque()
        self._unused_events: list[CudaEvent] = []
        self._is_initialized = False
        self._last_order: tuple[str, ...] | None = None
        self._has_ranges = False

    def begin(self, identity: Identity, *, in_window: bool) -> TimedPass:
        """A pass is about to be launched; a range goes around it for the trace of an open window."""
        if not in_window:
            return identity, _now_ns(), self._now(), None
        began_ns, begin = _now_ns(), self._now()
        profiler_range = sys.modules["torch"].profiler.record_function(Pass._make(identity).range_name)
        profiler_range.__enter__()
        self._has_ranges = True
        return identity, began_ns, begin, profiler_range

    def end(self, timed: TimedPass) -> None:
        """All of a pass was launched."""
        identity, began_ns, begin, profiler_range = timed
        if profiler_range is not None:
            profiler_range.__exit__(None, None, None)
        end = self._now()
        if begin is not None and end is not None:
            self.is_in_use = True
            ended_ns = _now_ns()
            is_reached = isinstance(begin, int) or begin.query()
            self._current.append((identity, begin, end, began_ns, ended_ns, is_reached))

    def take_micro_batches(self, seen: int, calls: int) -> int:
        """The number of micro-batches that the step which ends ran forward; 0 where the model's calls say it.

        Args:
            seen: How many different ones were seen; all of them where passes do not rest.
            calls: Calls of the model.
        """
        forwards, rests = UNTIMED.forwards, UNTIMED.rest
        UNTIMED.forwards, UNTIMED.rest = 0, False
        if not rests:
            if seen:
                self._chunks = 1 if forwards % seen else forwards // seen
                self._is_called_once = calls == seen
            return seen
        return 0 if self._is_called_once or forwards % self._chunks else forwards // self._chunks

    def rest(self, steps: int, last: int) -> int:
        """Let the passes of the next step rest, if they are not timed, and need not be counted.

        Args:
            steps: Completed steps.
            last: Up to so many completed steps the end of a step is nothing special.

        Returns:
            The same, but that it is special ahead of a step whose passes are timed.
        """
        next_timed = (steps | self.untimed) + 1
        if not self._is_called_once or next_timed == steps + 1:
            return last
        UNTIMED.rest = True
        return min(last, next_timed - 2)

    def end_step(self, number: int) -> None:
        """A training step completed on the host; its passes may still run."""
        self.untimed = 0 if number < _FIRST_STEPS else _PERIOD - 1
        if self._current:
            self._pending.append(self._take(number))
        while len(self._pending) > _MAX_PENDING:
            self._recycle(self._pending.popleft())
            self.lost += 1

    def discard_current(self) -> None:
        """Forget the passes since the last step: it is not clear which step they belong to."""
        self._recycle(self._take(0))

    def _take(self, number: int) -> _Step:
        step = _Step(number, list(map(_FinishedPass._make, self._current)), self._has_ranges)
        self._current, self._has_ranges = [], False
        return step

    def pop_finished(self) -> list[MicroBatchRecord]:
        """The steps that the device is done with, in order; nothing waits for it."""
        records = []
        # The last pass is looked at first: where it is done, all are.
        while self._pending and all(_is_reached(timed.end) for timed in reversed(self._pending[0].passes)):
            step = self._pending.popleft()
            records.append(self._record(step))
            self._recycle(step)
        self.is_in_use = bool(self._pending or self._current)
        return records

    def _now(self) -> Mark | None:
        """A mark in the current stream, or the time of the host without a device; None while a graph is captured."""
        cuda = sys.modules["torch"].cuda
        if not self._is_initialized:
            self._is_initialized = cuda.is_initialized()  # is_available() would ask the driver, each time
            if not self._is_initialized:
                return _now_ns()
        if cuda.is_current_stream_capturing():
            return None
        event = self._unused_events.pop() if self._unused_events else cuda.Event(enable_timing=True)
        event.record()
        return event

    def _record(self, step: _Step) -> MicroBatchRecord:
        start = step.passes[0].begin
        times = [(_between_ns(start, timed.begin), _between_ns(timed.begin, timed.end)) for timed in step.passes]
        totals: dict[tuple[str, int], list[int]] = {}
        for timed, (_, duration_ns), wait_ns in zip(step.passes, times, _waits_ns(step.passes, times), strict=True):
            kind, _, stage, *_ = timed.identity
            total = totals.setdefault((kind, stage), [0, 0, duration_ns, 0, 0])
            total[0] += 1
            total[1] += duration_ns
            total[2] = min(total[2], duration_ns)
            total[3] += timed.ended_ns - timed.began_ns
            total[4] += wait_ns
        is_launched = not isinstance(start, int)
        identities = [Pass._make(timed.identity) for timed in step.passes]
        order = tuple(f"{identity.kind}{identity.microbatch}.{identity.stage}" for identity in identities)
        is_new = order != self._last_order
        self._last_order = order
        return MicroBatchRecord(
            step=step.number,
            device=identities[0].device,
            devices=identities[0].devices,
            stages=identities[0].stages,
            span_ns=max(start_ns + duration_ns for start_ns, duration_ns in times),
            totals=tuple((kind, stage, count, time_ns) for (kind, stage), (count, time_ns, *_) in totals.items()),
            order=order if is_new or step.has_ranges else None,
            times_ns=tuple(times) if is_new or step.has_ranges else None,
            fastest_ns=tuple(fastest_ns for _, _, fastest_ns, *_ in totals.values()),
            launches_ns=tuple(launch_ns for *_, launch_ns, _ in totals.values()) if is_launched else None,
            waits_ns=tuple(wait_ns for *_, wait_ns in totals.values()) if is_launched else None,
        )

    def _recycle(self, step: _Step) -> None:
        for timed in step.passes:
            self._unused_events += [mark for mark in (timed.begin, timed.end) if not isinstance(mark, int)]


def _waits_ns(passes: list[_FinishedPass], times: list[tuple[int, int]]) -> list[int]:
    """For how long of each pass the device may have waited for the host, at most.

    Args:
        passes: Those of a step.
        times: Beginning and length of each on the device, from the beginning of the first one.
    """
    timed = list(zip(passes, times, strict=True))
    first_ns = max((each.began_ns if each.is_reached else each.ended_ns) - start_ns for each, (start_ns, _) in timed)
    return [
        min(duration_ns, max(0, each.ended_ns - max(each.began_ns, first_ns + start_ns)))
        for each, (start_ns, duration_ns) in timed
    ]


def _is_reached(mark: Mark) -> bool:
    return isinstance(mark, int) or mark.query()


def _between_ns(begin: Mark, end: Mark) -> int:
    if isinstance(begin, int) and isinstance(end, int):
        return end - begin
    if isinstance(begin, int) or isinstance(end, int):
        raise TypeError("a device was first used inside a pass")
    return round(begin.elapsed_time(end) * NS_PER_MS)
