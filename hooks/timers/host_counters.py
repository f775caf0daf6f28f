"""The kernel's counters of the thread that trains: processor time, time without a processor, page faults.

Three system calls at the end of a step take two microseconds in a loop, and about twenty where a step has left nothing
of the kernel's code in the caches; half of that is the scheduler's file. That one is therefore read only where it may
say something: where the thread lost its processor or the step took longer than usual, and else once in 16 steps, for
all of them together. What the calls return is put into the step's row as it is, and becomes differences in the thread
that writes records.
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

    #: Processor time, the scheduler's text, and the thread's usage of resources, as they were read; None for the text
    #: where it was not read.
    RawCounters: TypeAlias = tuple[int, bytes | None, resource.struct_rusage]

_NS_PER_S = 1_000_000_000
#: One step in so many reads all counters: a power of two, less one.
EACH_READ_MASK = 15
#: A step is long where it takes longer than usual by this part of that, as a power of two.
_LONG_SHIFT = 3
#: How far one step moves what is usual, as powers of two: by at most a quarter of it, of which a sixteenth counts.
_LIMIT_SHIFT, _WEIGHT_SHIFT = 2, 4


class HostCounters:
    """The counters of one thread.

    Attributes:
        file: The scheduler's counters of the thread; -1 where the kernel has none.
        preempted: How often the thread had lost its processor when the scheduler's counters were read last.
        long_ns: A step that takes longer reads the scheduler's counters.
    """

    def __init__(self) -> None:
        self.file = -1
        self.preempted = -1
        self.long_ns = 0
        self._usual_ns = 0
        self._has_begun = False
        #: Processor time, processor time in the kernel, page faults and losses of the processor at the last step.
        self._last: tuple[int, int, int, int] | None = None
        self._delay_ns = 0
        self._unread_steps = 0

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
        """Read all counters, in the thread that trains; None where the kernel has none."""
        if self.file < 0:
            return None
        usage = resource.getrusage(resource.RUSAGE_THREAD)
        self.preempted = usage.ru_nivcsw
        return time.thread_time_ns(), read_counters(self.file), usage

    def to_work(self, raw: RawCounters | None, wall_ns: int | None = None) -> HostWork | None:
        """What a step did, from the counters at its end, in the order of steps; None for the first one.

        Args:
            raw: What was read.
            wall_ns: How long the step took, if it is like most others.
        """
        if wall_ns:
            usual_ns = self._usual_ns or wall_ns
            most_ns, change_ns = usual_ns >> _LIMIT_SHIFT, wall_ns - usual_ns
            change_ns = most_ns if change_ns > most_ns else -most_ns if change_ns < -most_ns else change_ns
            self._usual_ns = usual_ns = usual_ns + (change_ns >> _WEIGHT_SHIFT)
            self.long_ns = usual_ns + (usual_ns >> _LONG_SHIFT)
        last, self._last = self._last, None
        if raw is None:
            return None
        cpu_ns, text, usage = raw
        delay_ns, delay_steps = 0, 0
        if text is None:
            self._unread_steps += 1
        else:
            now_ns = parse_delay(text)
            if now_ns is None:
                return None
            delay_ns, delay_steps = now_ns - self._delay_ns, self._unread_steps + 1
            self._delay_ns, self._unread_steps = now_ns, 0
        system_ns, faults = round(usage.ru_stime * _NS_PER_S), usage.ru_minflt + usage.ru_majflt
        preempted = usage.ru_nivcsw
        if last is None and text is None:
            return None  # since when the scheduler has counted is not known
        self._last = cpu_ns, system_ns, faults, preempted
        if last is None:
            return None
        last_cpu_ns, last_system_ns, last_faults, last_preempted = last
        # Written out, because this runs for every step in a thread that holds the interpreter.
        return HostWork(
            cpu_ns - last_cpu_ns if cpu_ns > last_cpu_ns else 0,
            delay_ns if delay_ns > 0 else 0,
            system_ns - last_system_ns if system_ns > last_system_ns else 0,
            faults - last_faults if faults > last_faults else 0,
            preempted - last_preempted if preempted > last_preempted else 0,
            delay_steps,
        )
