"""The kernel's counters of the thread that trains: processor time, time without a processor, page faults.

Three system calls at the end of a step take two microseconds in a loop, and about twenty where a step has left nothing
of the kernel's code in the caches; half of that is the scheduler's file. What they return is put into the step's row as
it is, and becomes differences in the thread that writes records.
"""

from __future__ import annotations

import os
import resource
import time
from typing import TYPE_CHECKING

from perfscope.hooks.timers.exchanges import read_counters
from perfscope.wire.host import HostWork, parse_delay

if TYPE_CHECKING:
    from typing import TypeAlias

    #: Processor time, the scheduler's text and the thread's usage of resources, as they were read.
    RawCounters: TypeAlias = tuple[int, bytes, resource.struct_rusage]

_NS_PER_S = 1_000_000_000
#: Places of ``struct_rusage``: ru_stime, ru_minflt, ru_majflt, ru_nivcsw.
_SYSTEM_S, _MINOR, _MAJOR, _LOST = 1, 6, 7, 15


class HostCounters:
    """The counters of one thread.

    Attributes:
        file: The scheduler's counters of the thread; -1 where the kernel has none.
    """

    def __init__(self) -> None:
        self.file = -1
        self._has_begun = False
        self._last: tuple[int, int, int, int, int] | None = None

    def begin(self) -> None:
        """Count for the thread that calls this."""
        if self._has_begun:
            return
        self._has_begun = True
        try:
            self.file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return

    def read(self) -> RawCounters | None:
        """Read the counters, in the thread that trains; None where the kernel has none."""
        if self.file < 0:
            return None
        return time.thread_time_ns(), read_counters(self.file), resource.getrusage(resource.RUSAGE_THREAD)

    def to_work(self, raw: RawCounters | None) -> HostWork | None:
        """What a step did, from the counters at its end, in the order of steps; None for the first one."""
        last, self._last = self._last, None
        if raw is None:
            return None
        cpu_ns, text, usage = raw
        delay_ns = parse_delay(text)
        if delay_ns is None:
            return None
        system_ns, faults = round(usage.ru_stime * _NS_PER_S), usage.ru_minflt + usage.ru_majflt
        preempted = usage.ru_nivcsw
        self._last = cpu_ns, delay_ns, system_ns, faults, preempted
        if last is None:
            return None
        last_cpu_ns, last_delay_ns, last_system_ns, last_faults, last_preempted = last
        # Written out, because this runs for every step in a thread that holds the interpreter.
        return HostWork(
            cpu_ns - last_cpu_ns if cpu_ns > last_cpu_ns else 0,
            delay_ns - last_delay_ns if delay_ns > last_delay_ns else 0,
            system_ns - last_system_ns if system_ns > last_system_ns else 0,
            faults - last_faults if faults > last_faults else 0,
            preempted - last_preempted if preempted > last_preempted else 0,
        )
