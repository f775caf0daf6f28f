"""Times every forward and backward pass of a micro-batch in some steps, without waiting for the device.

A pair of CUDA events goes around each pass; they are read steps later, when the device has long passed them. A pass is
timed on the device from when its inputs have arrived to when its last kernel has run. On a CPU the host's clock does.

A step has many passes, each of which takes microseconds of the host. They are timed in the first steps, and then in
one step of 16: ranks time the same steps.
"""

from __future__ import annotations

import sys
from collections import deque
from time import monotonic_ns as _now_ns
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from perfscope.constants import NS_PER_MS
from perfscope.hooks.open_window import UNTIMED
from perfscope.hooks.timers.probes import MOST_PENDING, ONE_IN, CudaEvent
from perfscope.wire.passes import MicroBatchRecord, PassRange

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

#: The passes of so many steps are timed, for jobs that end soon.
_FIRST_STEPS = 32


#: A moment: an event of the device, or nanoseconds of the host's clock.
Mark: TypeAlias = "CudaEvent | int"
#: A pass that is launched: its range, its first moment (None inside a CUDA graph, where no event is recorded), and the
#: profiler's range in an open window. The fields of ``PassRange`` are a plain tuple: a step makes many.
Identity: TypeAlias = "tuple[str, int, int, int, int]"
TimedPass: TypeAlias = "tuple[Identity, int, Mark | None, AbstractContextManager[object] | None]"


class _Step(NamedTuple):
    number: int
    passes: list[tuple[Identity, int, Mark, Mark]]
    has_ranges: bool


class PassTimer:
    """The passes of one rank; of a step whose passes are timed no bit of ``untimed`` is set in its number."""

    def __init__(self) -> None:
        self.is_in_use = False
        self.untimed = 0
        UNTIMED.rest, UNTIMED.forwards = False, 0
        #: Parts of the model on this rank, through each of which a micro-batch runs forward.
        self._chunks = 1
        #: Calls of the model are as many as micro-batches.
        self._is_called_once = False
        self._current: list[tuple[Identity, int, Mark, Mark]] = []
        self._pending: deque[_Step] = deque()
        self._unused_events: list[CudaEvent] = []
        self._is_initialized = False
        self._last_order: tuple[str, ...] | None = None
        self._has_ranges = False

    def begin(
        self, kind: str, microbatch: int, stage: int, stages: int, device: int, devices: int, *, in_window: bool
    ) -> TimedPass:
        """A pass is about to be launched: see ``PassRange``; ``stages`` are those of the model."""
        identity, begin, profiler_range = (kind, microbatch, stage, device, devices), self._now(), None
        if in_window:
            profiler_range = sys.modules["torch"].profiler.record_function(PassRange(*identity).name)
            profiler_range.__enter__()
            self._has_ranges = True
        return identity, stages, begin, profiler_range

    def end(self, timed: TimedPass) -> None:
        """All of a pass was launched."""
        identity, stages, begin, profiler_range = timed
        if profiler_range is not None:
            profiler_range.__exit__(None, None, None)
        end = self._now()
        if begin is not None and end is not None:
            self.is_in_use = True
            self._current.append((identity, stages, begin, end))

    def take_micro_batches(self, seen: int, calls: int) -> int:
        """The number of micro-batches that the step which ends ran forward; 0 where the model's calls say it.

        ``seen`` are the different ones: all of them where passes do not rest.
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

        Up to ``last`` completed steps the end of a step is nothing special. Returns the same, at most up to the step
        before one whose passes are timed.
        """
        next_timed = (steps | self.untimed) + 1
        if not self._is_called_once or next_timed == steps + 1:
            return last
        UNTIMED.rest = True
        return min(last, next_timed - 2)

    def end_step(self, number: int) -> None:
        """A training step completed on the host; its passes may still run."""
        self.untimed = 0 if number < _FIRST_STEPS else ONE_IN - 1
        if self._current:
            self._pending.append(self._take(number))
        while len(self._pending) > MOST_PENDING:
            self._recycle(self._pending.popleft())

    def discard_current(self) -> None:
        """Forget the passes since the last step: it is not clear which step they belong to."""
        self._recycle(self._take(0))

    def _take(self, number: int) -> _Step:
        step = _Step(number, self._current, self._has_ranges)
        self._current, self._has_ranges = [], False
        return step

    def pop_finished(self) -> list[MicroBatchRecord]:
        """The steps that the device is done with, in order; nothing waits for it."""
        records = []
        # The last pass is looked at first: where it is done, all are.
        while self._pending and all(_is_reached(end) for *_, end in reversed(self._pending[0].passes)):
            step = self._pending.popleft()
            records.append(self._record(step))
            self._recycle(step)
        self.is_in_use = bool(self._pending or self._current)
        return records

    def _now(self) -> Mark | None:
        """None while a graph is captured."""
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
        (first, stages, start, _), *_ = step.passes
        times = tuple((_between_ns(start, begin), _between_ns(begin, end)) for _, _, begin, end in step.passes)
        totals: dict[tuple[str, int], tuple[int, int]] = {}
        for ((kind, _, stage, *_), *_), (_, duration_ns) in zip(step.passes, times, strict=True):
            count, time_ns = totals.get((kind, stage), (0, 0))
            totals[kind, stage] = count + 1, time_ns + duration_ns
        order = tuple(f"{kind}{microbatch}.{stage}" for (kind, microbatch, stage, *_), *_ in step.passes)
        is_stated = order != self._last_order or step.has_ranges
        self._last_order = order
        return MicroBatchRecord(
            step=step.number,
            device=first[3],
            devices=first[4],
            stages=stages,
            span_ns=max(start_ns + duration_ns for start_ns, duration_ns in times),
            totals=tuple((*key, *total) for key, total in totals.items()),
            order=order if is_stated else None,
            times_ns=times if is_stated else None,
        )

    def _recycle(self, step: _Step) -> None:
        for *_, begin, end in step.passes:
            self._unused_events += [mark for mark in (begin, end) if not isinstance(mark, int)]


def _is_reached(mark: Mark) -> bool:
    return isinstance(mark, int) or mark.query()


def _between_ns(begin: Mark, end: Mark) -> int:
    if isinstance(begin, int) and isinstance(end, int):
        return end - begin
    if isinstance(begin, int) or isinstance(end, int):
        raise TypeError("a device was first used inside a pass")
    return round(begin.elapsed_time(end) * NS_PER_MS)
