"""Times how long the training thread waits for other ranks, where that is the host's time: training on processors.

Ranks that exchange data over gloo wait on the host, and the rank that waits least is the one that the others wait for.
Two things show it. One is a call that waits for the work of a process group. The other is a backward pass, in which DDP
waits without Python: apart from these waits the thread runs or is in the run queue. On GPUs the device waits, not the
host: nothing is wrapped there.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from perfscope.hooks.guard import call_safely
from perfscope.hooks.introspection import COMPILER
from perfscope.wire.host import HostWaits, parse_delay

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    #: How long a backward pass took, its processor time, and the scheduler's text before and after it.
    Backward: TypeAlias = tuple[int, int, bytes, bytes]
    #: What a step's row carries of its waits: for collectives, for sends and receives, and its backward passes.
    RawWaits: TypeAlias = tuple[int, int, Sequence[Backward]]

_clock, _cpu = time.monotonic_ns, time.thread_time_ns
#: c10d's numbers of send, recv and recv from any source.
_TRANSFERS = (12, 13, 14)


class ExchangeTimer:
    """The waits of one training thread."""

    def __init__(self) -> None:
        self.is_in_use = False
        self._thread: int | None = None
        self._is_waiting = self._is_in_backward = False
        self._collective_ns = self._transfer_ns = 0
        self._backwards: list[Backward] = []

    def begin(self, thread: int | None, counters_file: int) -> None:
        """Time the waits of a thread, with these counters of the scheduler, where it exchanges data and uses no GPU."""
        torch, c10d = sys.modules["torch"], sys.modules.get("torch.distributed.distributed_c10d")
        if self.is_in_use or c10d is None or not c10d.is_initialized() or torch.cuda.is_initialized():
            return
        if c10d.get_world_size() == 1:
            return
        self.is_in_use, self._thread = True, thread
        kind_of = getattr(c10d.Work, "_get_op_type", None)
        self._wrap_wait(c10d.Work, "wait", lambda work: kind_of is not None and int(kind_of(work)) in _TRANSFERS)
        functional: Any = sys.modules.get("torch.distributed._functional_collectives")
        for name in ("trigger_wait", "wait"):
            if hasattr(getattr(functional, "AsyncCollectiveTensor", None), name):
                self._wrap_wait(functional.AsyncCollectiveTensor, name, lambda _: False)
        if counters_file >= 0:
            self._wrap_backward(torch.Tensor, counters_file)

    def take(self) -> RawWaits | None:
        """The waits since this was last asked; None where they are not timed."""
        if not self.is_in_use:
            return None
        waits = self._collective_ns, self._transfer_ns, self._backwards
        self._collective_ns = self._transfer_ns = 0
        self._backwards = []
        return waits

    def _is_timed(self) -> bool:
        return threading.get_ident() == self._thread and not COMPILER.is_tracing()

    def _wrap_wait(self, owner: Any, name: str, is_transfer: Callable[[Any], bool]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wait(work: Any, *args: object, **kwargs: object) -> Any:
            if self._is_waiting or not self._is_timed():
                return original(work, *args, **kwargs)
            self._is_waiting = True
            began_ns = _clock()
            try:
                return original(work, *args, **kwargs)
            finally:
                waited_ns = _clock() - began_ns
                self._is_waiting = False
                call_safely(lambda: self._add(waited_ns, is_transfer=is_transfer(work)))

        setattr(owner, name, wait)

    def _add(self, waited_ns: int, *, is_transfer: bool) -> None:
        if not self._is_in_backward:  # which counts as a whole
            self._transfer_ns += waited_ns * is_transfer
            self._collective_ns += waited_ns * (not is_transfer)

    def _wrap_backward(self, tensor_class: Any, counters_file: int) -> None:
        original = tensor_class.backward

        @functools.wraps(original)
        def backward(tensor: Any, *args: object, **kwargs: object) -> Any:
            if self._is_in_backward or not self._is_timed():
                return original(tensor, *args, **kwargs)
            self._is_in_backward = True
            before = call_safely(lambda: read_counters(counters_file))[0] or b""
            cpu_ns, began_ns = _cpu(), _clock()
            try:
                return original(tensor, *args, **kwargs)
            finally:
                times = _clock() - began_ns, _cpu() - cpu_ns
                self._is_in_backward = False
                after = call_safely(lambda: read_counters(counters_file))[0] or b""
                self._backwards.append((*times, before, after))

        tensor_class.backward = backward


def read_counters(descriptor: int) -> bytes:
    """The scheduler's counters of a thread; empty where they cannot be read."""
    try:
        return os.pread(descriptor, 64, 0)
    except OSError:
        return b""


def to_waits(raw: RawWaits | None) -> HostWaits | None:
    """The waits of a step; a backward pass waited as long as its thread neither ran nor could have run."""
    if raw is None:
        return None
    collective_ns, transfer_ns, backwards = raw
    for wall_ns, cpu_ns, before, after in backwards:
        began_ns, ended_ns = parse_delay(before), parse_delay(after)
        delay_ns = ended_ns - began_ns if began_ns is not None and ended_ns is not None else 0
        collective_ns += max(wall_ns - cpu_ns - delay_ns, 0)
    return HostWaits(collective_ns, transfer_ns)
