"""Times every forward and backward pass of a micro-batch, every step, without waiting for the device.

A pair of CUDA events goes around each pass; they are read steps later, when the device has long passed them. A pass is
timed on the device from when its inputs have arrived to when its last kernel has run. On a CPU the host's clock does.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from perfscope.constants import NS_PER_MS
from perfscope.wire import MicroBatchRecord, PassRange

#: Steps whose events the device has not reached yet; beyond that the oldest is given up, so that memory stays bounded.
_MOST_PENDING = 16


@dataclass(frozen=True)
class Pass:
    """One pass that is about to run.

    Attributes:
        kind: ``F``, ``B`` (a whole backward pass), ``I`` or ``W`` (gradients of the input or of the weights alone).
        microbatch: Which micro-batch, from 0.
        stage: Its virtual stage, and ``stages`` their number.
        device: The rank's place in the pipeline, and ``devices`` its length.
    """

    kind: str
    microbatch: int
    stage: int
    stages: int
    device: int
    devices: int

    @property
    def span(self) -> str:
        """The name of the range in a trace."""
        return PassRange(self.kind, self.microbatch, self.stage, self.device, self.devices).name


@dataclass
class _Timed:
    """A pass with its marks in time: events of CUDA, or nanoseconds of the host."""

    which: Pass
    begin: Any
    end: Any = None
    range: Any = None


@dataclass
class _Step:
    number: int
    passes: list[_Timed]
    is_marked: bool


@dataclass
class PassTimer:
    """The passes of one rank.

    Attributes:
        lost: Steps that were given up because the device never reached their events.
    """

    lost: int = 0
    _current: list[_Timed] = field(default_factory=list)
    _pending: deque[_Step] = field(default_factory=deque)
    _spare: list[Any] = field(default_factory=list)
    _last_order: tuple[str, ...] | None = None
    _is_marked: bool = False

    def begins(self, which: Pass, *, marked: bool) -> _Timed:
        """A pass is about to be launched; ``marked`` puts a range around it, for the trace of an open window."""
        timed = _Timed(which, self._now())
        if marked:
            timed.range = sys.modules["torch"].profiler.record_function(which.span)
            timed.range.__enter__()
            self._is_marked = True
        return timed

    def ends(self, timed: _Timed | None) -> None:
        """All of a pass was launched."""
        if timed is None:
            return
        if timed.range is not None:
            timed.range.__exit__(None, None, None)
            timed.range = None
        timed.end = self._now()
        if timed.begin is not None and timed.end is not None:
            self._current.append(timed)

    def step_ends(self, number: int) -> None:
        """A training step completed on the host; its passes may still run."""
        if self._current:
            self._pending.append(_Step(number, self._current, self._is_marked))
            self._current, self._is_marked = [], False
        while len(self._pending) > _MOST_PENDING:
            self._recycle(self._pending.popleft())
            self.lost += 1

    def ready(self) -> list[MicroBatchRecord]:
        """The steps that the device is done with, in order; nothing waits for it."""
        records = []
        while self._pending and all(_is_done(one.end) for one in reversed(self._pending[0].passes)):  # the last is last
            step = self._pending.popleft()
            records.append(self._record(step))
            self._recycle(step)
        return records

    def _now(self) -> Any:
        """A mark in the current stream, or the time of the host without a device; None while a graph is captured."""
        cuda = sys.modules["torch"].cuda
        if not cuda.is_initialized():  # is_available() would ask the driver, each time
            return time.monotonic_ns()
        if cuda.is_current_stream_capturing():
            return None
        event = self._spare.pop() if self._spare else cuda.Event(enable_timing=True)
        event.record()
        return event

    def _record(self, step: _Step) -> MicroBatchRecord:
        timed = step.passes
        first = timed[0].begin
        times = [(_between_ns(first, one.begin), _between_ns(one.begin, one.end)) for one in timed]
        totals: dict[tuple[str, int], list[int]] = {}
        for one, (_, duration) in zip(timed, times, strict=True):
            total = totals.setdefault((one.which.kind, one.which.stage), [0, 0])
            total[0] += 1
            total[1] += duration
        order = tuple(f"{one.which.kind}{one.which.microbatch}.{one.which.stage}" for one in timed)
        is_new = order != self._last_order
        self._last_order = order
        which = timed[0].which
        return MicroBatchRecord(
            step=step.number,
            device=which.device,
            devices=which.devices,
            stages=which.stages,
            span_ns=max(start + duration for start, duration in times),
            totals=tuple((kind, stage, count, time_ns) for (kind, stage), (count, time_ns) in totals.items()),
            order=order if is_new or step.is_marked else None,
            times_ns=tuple(times) if is_new or step.is_marked else None,
        )

    def _recycle(self, step: _Step) -> None:
        for one in step.passes:
            self._spare.extend(mark for mark in (one.begin, one.end) if not isinstance(mark, int))


def _is_done(mark: Any) -> bool:
    return isinstance(mark, int) or bool(mark.query())


def _between_ns(begin: Any, end: Any) -> int:
    if isinstance(begin, int):
        return int(end) - begin
    return round(float(begin.elapsed_time(end)) * NS_PER_MS)
