"""Writes down in which order the ranks of this node ended, and how, until none is left.

Run by itself: ``python -I -S coroner.py RANKS_FOLDER FOLDER_OF_PYNVML_OR_- PID``. A launcher ends all ranks when one
fails, so that the first one is the one to look at. This process is no parent of theirs: the kernel wakes it
when one ends, and it reads how from what the system keeps until the parent asks. Errors of GPUs (Xid) are written, too.
The lines are those of ``perfscope.wire.incidents``. This file imports nothing of perfscope, which is not on its path.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import sys
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

#: Ranks that appear later, as after an elastic restart, are found within this time.
_LOOK_MS = 2000
_LARGEST_DIFFERENCE_NS = 2 * 10**9
#: Of /proc/PID/stat, after the name of the program.
_FIELDS = {"start": 19, "exit code": 49}


class Ranks:
    """The processes of ranks on this host, by the descriptors that become readable when they end."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._host = socket.gethostname()
        self._seen: set[str] = set()
        self.poll = select.poll()
        self.processes: dict[int, tuple[int, int, int]] = {}

    def scan(self) -> None:
        """Find the ranks that have appeared."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self._folder):
                if name not in self._seen:
                    self._add(name)

    def _add(self, name: str) -> None:
        rank, _, attempt = name.partition(".")
        if not rank.isdigit() or not (attempt or "0").isdigit():
            self._seen.add(name)
            return
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            with open(os.path.join(self._folder, name, "rank.json"), encoding="utf-8") as file:
                record = json.load(file)
            self._seen.add(name)
            pid = int(record["pid"])
            if record["host"] == self._host and _is_same_process(pid, record.get("started_ns")):
                descriptor = os.pidfd_open(pid)
                self.poll.register(descriptor, select.POLLIN)
                self.processes[descriptor] = int(rank), int(attempt or 0), pid

    def wait(self) -> None:
        """Wait for the end of ranks, and write it down."""
        for descriptor, _ in self.poll.poll(_LOOK_MS):
            rank, attempt, pid = self.processes.pop(descriptor)
            ended = {"wall_ns": time.time_ns(), "monotonic_ns": time.monotonic_ns()}
            status = _read_exit_status(pid)
            self.poll.unregister(descriptor)
            os.close(descriptor)
            how: dict[str, int] = {}
            if status is not None:
                how = {"signal": status & 0x7F} if status & 0x7F else {"exit_code": status >> 8}
            kills = count_memory_kills()
            if kills is not None and _KILLS_AT_START is not None:
                how["memory_kills"] = kills - _KILLS_AT_START
            _write({"kind": "death", "rank": rank, "attempt": attempt, "pid": pid, **ended, **how})


def _is_same_process(pid: int, started_ns: object) -> bool:
    """Whether a process was started when the record says: numbers of processes differ between containers."""
    if not isinstance(started_ns, int):
        return True
    ticks = _read_stat(pid, "start")
    suspended_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
    return abs(ticks * 10**9 // os.sysconf("SC_CLK_TCK") - suspended_ns - started_ns) < _LARGEST_DIFFERENCE_NS


def _read_stat(pid: int, field: str) -> int:
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return int(file.read().rpartition(")")[2].split()[_FIELDS[field]])


def _read_exit_status(pid: int) -> int | None:
    """What ``wait`` will return to the parent; None where the parent was quicker."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return _read_stat(pid, "exit code")
    return None


def count_memory_kills() -> int | None:
    """How often the kernel killed a process of this control group for want of memory; None where it does not say."""
    with contextlib.suppress(OSError, ValueError):
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            path = next((line.split(":", 2)[2].strip() for line in file if line.startswith("0:")), None)
        for folder in (f"/sys/fs/cgroup{path}", "/sys/fs/cgroup"):
            with contextlib.suppress(OSError), open(f"{folder}/memory.events", encoding="utf-8") as file:
                return next(int(line.split()[1]) for line in file if line.startswith("oom_kill "))
    return None


class KernelErrors:
    """Errors that the driver reports of the GPUs of this node; nothing where NVML does not tell."""

    def __init__(self, folder: str) -> None:
        self._pynvml: Any = None
        self._events: Any = None
        if folder == "-":
            return
        sys.path.append(folder)
        try:
            pynvml: Any = import_module("pynvml")
            pynvml.nvmlInit()
            events = pynvml.nvmlEventSetCreate()
            for index in range(pynvml.nvmlDeviceGetCount()):
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
        except Exception:  # noqa: BLE001 - of a library of the driver's: there is no GPU, or no such event
            return
        self._pynvml, self._events = pynvml, events

    def write_new(self) -> None:
        """Write the errors since the last call."""
        while self._events is not None:
            try:
                event = self._pynvml.nvmlEventSetWait_v2(self._events, 0)
                uuid = self._pynvml.nvmlDeviceGetUUID(event.device)
            except Exception:  # noqa: BLE001 - a timeout is an exception here: there is none
                return
            text = uuid.decode() if isinstance(uuid, bytes) else str(uuid)
            _write({"kind": "xid", "uuid": text, "xid": int(event.eventData), "wall_ns": time.time_ns()})


def _write(record: dict[str, object]) -> None:
    os.write(1, json.dumps(record, separators=(",", ":")).encode() + b"\n")


_KILLS_AT_START = count_memory_kills()


def watch_process(pid: int) -> Callable[[], bool]:
    """A function that says whether a process goes on; it is not this one's parent, or not any more."""
    try:
        descriptor = os.pidfd_open(pid)
    except (AttributeError, OSError):  # an old kernel, or it has ended
        return lambda: os.path.exists(f"/proc/{pid}")
    ended = select.poll()
    ended.register(descriptor, select.POLLIN)
    return lambda: not ended.poll(0)


def main(ranks_folder: str, pynvml_folder: str, starter: int) -> None:
    """Watch the ranks of this node until all have ended, the one that started this process included."""
    ranks, errors, goes_on = Ranks(ranks_folder), KernelErrors(pynvml_folder), watch_process(starter)
    ranks.scan()
    while ranks.processes or goes_on():
        ranks.wait()
        errors.write_new()
        ranks.scan()


if __name__ == "__main__":
    with contextlib.suppress(OSError):
        main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
