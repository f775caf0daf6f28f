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
from perfscope.hooks.timers.exchange_groups import ExchangeGroups
from perfscope.wire.host import MOST_GROUPS, HostWaits, parse_delay

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    #: How long a backward pass took, its processor time, and the scheduler's text before and after it.
    Backward: TypeAlias = tuple[int, int, bytes, bytes]
    #: What a step's row carries of its waits: for collectives, for sends and receives, and its backward passes; then
    #: those for each group, what of them was in backward passes, and the number of the group of the rest of these.
    RawWaits: TypeAlias = tuple[int, int, Sequence[Backward], Sequence[int], int, int | None]

_clock, _get_ident, _cpu = time.monotonic_ns, threading.get_ident, time.thread_time_ns
#: c10d's numbers of send, recv and recv from any source.
_TRANSFERS = (12, 13, 14)


class ExchangeTimer:
    """The waits of one training thread.

    Attributes:
        is_in_use: Whether waits are timed.
        groups: The process groups that are waited for.
    """

    def __init__(self) -> None:
        self.is_in_use = False
        self.groups = ExchangeGroups()
        self._group_ns = [0] * MOST_GROUPS
        self._in_backwards_ns = 0
        self._is_waiting = False
        self._collective_ns = 0
        self._transfer_ns = 0
        self._backwards: list[Backward] = []
        self._is_in_backward = False

    def begin(
        self,
        thread: int | None,
        counters_file: int,
        write_groups: Callable[[Sequence[dict[str, object]]], None],
    ) -> None:
        """Time the waits of a thread from now on, where it exchanges data and uses no GPU.

        Args:
            thread: The thread that trains.
            counters_file: The scheduler's counters of that thread.
            write_groups: Gets the groups that are told apart; see ExchangeGroups.
        """
        torch, c10d = sys.modules["torch"], sys.modules.get("torch.distributed.distributed_c10d")
        if self.is_in_use or c10d is None or not c10d.is_initialized() or torch.cuda.is_initialized():
            return
        if c10d.get_world_size() > 1:
            self.is_in_use = True
            self.groups.begin(c10d, thread, write_groups)
            self._wrap_waits(c10d.Work, thread)
            functional = sys.modules.get("torch.distributed._functional_collectives")
            for name in ("trigger_wait", "wait"):
                result_class = getattr(functional, "AsyncCollectiveTensor", None)
                if hasattr(result_class, name):
                    self._wrap_result_waits(result_class, name, thread)
            if counters_file >= 0:
                self._wrap_backward(torch.Tensor, thread, counters_file)

    def take(self) -> RawWaits | None:
        """The waits since this was last asked; None where they are not timed."""
        if not self.is_in_use:
            return None
        self.groups.calls.end_step()
        reducer = self.groups.reducer
        waits = (
            self._collective_ns, self._transfer_ns, self._backwards, self._group_ns, self._in_backwards_ns, reducer
        )  # fmt: skip
        self._collective_ns = self._transfer_ns = self._in_backwards_ns = 0
        self._backwards, self._group_ns = [], [0] * MOST_GROUPS
        return waits

    def _wrap_waits(self, work_class: Any, thread: int | None) -> None:
        original, kind_of = work_class.wait, getattr(work_class, "_get_op_type", None)

        @functools.wraps(original)
        def wait(work: Any, *args: object, **kwargs: object) -> Any:
            if self._is_waiting or _get_ident() != thread or COMPILER.is_tracing():
                return original(work, *args, **kwargs)
            began_ns = _clock()
            try:
                return original(work, *args, **kwargs)
            finally:
                waited_ns = _clock() - began_ns
                call_safely(lambda: self._add(kind_of, work, waited_ns))

        work_class.wait = wait

    def _wrap_result_waits(self, result_class: Any, name: str, thread: int | None) -> None:
        """Time where the result of a functional collective is waited for."""
        original = getattr(result_class, name)

        @functools.wraps(original)
        def wait(result: Any) -> Any:
            if self._is_waiting or _get_ident() != thread or COMPILER.is_tracing():
                return original(result)
            self._is_waiting = True
            began_ns = _clock()
            try:
                return original(result)
            finally:
                waited_ns = _clock() - began_ns
                self._is_waiting = False
                call_safely(lambda: self._add_collective(self.groups.group_of_result(result), waited_ns))

        setattr(result_class, name, wait)

    def _add(self, kind_of: Callable[[Any], int] | None, work: object, waited_ns: int) -> None:
        if kind_of is None or int(kind_of(work)) not in _TRANSFERS:
            self._add_collective(self.groups.group_of(work), waited_ns)
        elif not self._is_in_backward:
            self._transfer_ns += waited_ns

    def _add_collective(self, number: int | None, waited_ns: int) -> None:
        """A collective was waited for; in a backward pass the pass itself counts, and this says only whose it was."""
        if self._is_in_backward:
            self._in_backwards_ns += waited_ns
        else:
            self._collective_ns += waited_ns
        if number is not None:
            self._group_ns[number] += waited_ns

    def _wrap_backward(self, tensor_class: Any, thread: int | None, counters_file: int) -> None:
        original = tensor_class.backward

        @functools.wraps(original)
        def backward(tensor: Any, *args: object, **kwargs: object) -> Any:
            if self._is_in_backward or _get_ident() != thread or COMPILER.is_tracing():
                return original(tensor, *args, **kwargs)
            self._is_in_backward = True
            call_safely(self.groups.calls.add_backward)
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
    collective_ns, transfer_ns, backwards, by_group, in_backwards_ns, reducer = raw
    before_ns, group_ns = collective_ns, list(by_group)
    for wall_ns, cpu_ns, before, after in backwards:
        began_ns, ended_ns = parse_delay(before), parse_delay(after)
        delay_ns = ended_ns - began_ns if began_ns is not None and ended_ns is not None else 0
        collective_ns += max(wall_ns - cpu_ns - delay_ns, 0)
    if reducer is not None:  # the buckets of gradients are waited for without Python
        group_ns[reducer] += max(collective_ns - before_ns - in_backwards_ns, 0)
    return HostWaits(collective_ns, transfer_ns, *group_ns)
