"""The kernel's counters of the thread that trains: processor time, time without a processor, page faults.

Three system calls at the end of a step take two microseconds in a loop. They take twenty or more after a step that has
evicted the kernel's code from the caches. Where no waits are timed on the host, as on GPUs, they are therefore made
after a step that took longer than usual. Otherwise they are made once in 16 steps, for all of them together. The thread
that writes records makes the differences.

On a device another thread launches backward passes, and the one that trains is blocked meanwhile: its time in the run
queue is read with the other counters.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import time
from typing import TYPE_CHECKING

from perfscope.constants import NS_PER_S
from perfscope.hooks.timers.exchanges import read_counters
from perfscope.wire.host import HostWork, parse_delay

if TYPE_CHECKING:
    from typing import TypeAlias

    #: Processor time, the scheduler's text, and the thread's usage of resources, as they were read; then the
    #: scheduler's text of the thread that launches backward passes, empty for none.
    RawCounters: TypeAlias = tuple[int, bytes, resource.struct_rusage, bytes]

#: torch's name of the threads that launch backward passes, one for each device.
_LAUNCHERS = b"pt_autograd"
#: So often the one that does is looked for: it exists from the first backward pass on.
_MOST_SEARCHES = 8


class HostCounters:
    """The counters of one thread, and of the one that launches backward passes; files are -1 where there are none."""

    def __init__(self) -> None:
        self.file = self.launcher_file = -1
        self._searches = 0
        self._launcher_ns: int | None = None
        self._has_begun = False
        #: Processor time, time without a processor, processor time in the kernel, page faults and losses of the
        #: processor, as they were read last.
        self._last: tuple[int, int, int, int, int] | None = None
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
        launcher = read_counters(self.launcher_file) if self.launcher_file >= 0 else b""
        return time.thread_time_ns(), read_counters(self.file), resource.getrusage(resource.RUSAGE_THREAD), launcher

    def find_launcher(self) -> None:
        """Find the thread that launches backward passes on a device, in the thread that writes records."""
        if self.launcher_file >= 0 or self.file < 0 or self._searches >= _MOST_SEARCHES:
            return
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return
        self._searches += 1
        self.launcher_file = _open_launcher()

    def to_launcher_delay(self, raw: RawCounters | None) -> int | None:
        """How long the thread that launches backward passes had no processor, over the steps of ``to_work``."""
        if raw is None:
            return None
        last_ns, self._launcher_ns = self._launcher_ns, parse_delay(raw[3])
        return None if last_ns is None or self._launcher_ns is None else max(self._launcher_ns - last_ns, 0)

    def skip(self, steps: int) -> None:
        """The counters were not read at the end of the next so many steps."""
        self._unread_steps += steps

    def to_work(self, raw: RawCounters | None) -> HostWork | None:
        """What was done since the counters were read last, up to the next step's end; None without two reads."""
        if raw is None:
            self._unread_steps += 1
            return None
        cpu_ns, text, usage, _ = raw
        last, steps = self._last, self._unread_steps + 1
        self._last, self._unread_steps = None, 0
        delay_ns = parse_delay(text)
        if delay_ns is None:
            return None
        system_ns, faults = round(usage.ru_stime * NS_PER_S), usage.ru_minflt + usage.ru_majflt
        preempted = usage.ru_nivcsw
        self._last = cpu_ns, delay_ns, system_ns, faults, preempted
        if last is None:
            return None
        return HostWork._make((*(max(now - before, 0) for now, before in zip(self._last, last, strict=True)), steps))


def _open_launcher() -> int:
    """The scheduler's counters of the thread that worked most of those that launch backward passes; -1 without any."""
    most_ns, chosen = 0, -1
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            if not _read_file(f"/proc/self/task/{task}/comm").startswith(_LAUNCHERS):
                continue
            path = f"/proc/self/task/{task}/schedstat"
            counted = _read_file(path).split()
            worked_ns = int(counted[0]) if parse_delay(b" ".join(counted)) is not None else 0
            if worked_ns > most_ns:
                opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                if chosen >= 0:
                    os.close(chosen)
                most_ns, chosen = worked_ns, opened
    return chosen


def _read_file(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
