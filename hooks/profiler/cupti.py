"""Detaches CUPTI, by which torch.profiler records the device's work, from the process at the end of a window.

CUPTI stays attached after a profiler has stopped, and every later launch of a kernel passes through it. This made
host-bound steps 25 to 50 % slower for the rest of the process. kineto detaches it where ``TEARDOWN_CUPTI`` is 1 when
the profiler stops, in a thread of its own that ends with the next call of the CUDA runtime in any thread. A process
cannot end while that thread waits, so such calls are made here until it is gone.

kineto reads the variable each time. It is 1 from the start of a window to its end only, so that profilers of the script
find what they would find without perfscope.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

VARIABLE = "TEARDOWN_CUPTI"
_DETACH = "1"
#: Between windows: every value but 1 means no to kineto, and torch itself writes 0, which stays as it is.
_BETWEEN_WINDOWS = "off"
#: Before this version, CUPTI crashes when it attaches again to a process that has CUDA graphs.
_FIRST_SAFE_CUDA = (12, 6)
_LONGEST_WAIT_S = 0.5
_PAUSE_S = 0.0002
_THREADS = "/proc/self/task"


def reserve_variable() -> None:
    """Put the variable into the environment while few threads could read it: windows only change its value."""
    os.environ.setdefault(VARIABLE, _BETWEEN_WINDOWS)


class CuptiDetachment:
    """What becomes of CUPTI at the end of one window; ``attached_because`` says why it stays attached."""

    def __init__(self, torch: Any) -> None:
        cuda_version = read_cuda_version(torch)
        self.attached_because = find_obstacle(cuda_version, os.environ)
        self._cuda = None if cuda_version is None else torch.cuda
        self._is_requested = False

    @property
    def is_detached(self) -> bool | None:
        """Whether CUPTI is gone after the window; None where the process uses no CUDA device."""
        if self._cuda is None or not self._cuda.is_initialized():
            return None
        return self.attached_because is None

    def prepare(self) -> None:
        """Let kineto detach CUPTI when the profiler that is about to start stops."""
        if self._cuda is not None and self.attached_because is None and os.environ.get(VARIABLE) != _DETACH:
            os.environ[VARIABLE] = _DETACH
            self._is_requested = True

    def cancel(self) -> None:
        """Let CUPTI stay: its thread may not hold up the end of a process whose device does not answer."""
        self.attached_because = self.attached_because or "training failed in the window"
        self._reset()

    def stop(self, stop_profiler: Callable[[], object]) -> None:
        """Stop the profiler; CUPTI is detached when this returns."""
        if self.is_detached and os.environ.get(VARIABLE) != _DETACH:  # torch decides so where it knows of CUDA graphs
            self.attached_because = f"the environment has {VARIABLE}={os.environ.get(VARIABLE)}"
        earlier = _threads()
        try:
            stop_profiler()
            if self.is_detached:
                self._wait_for(_threads() - earlier)
        finally:
            self._reset()

    def _wait_for(self, threads: set[str]) -> None:
        """Call the CUDA runtime until the thread that detaches CUPTI is gone; nothing waits for the device."""
        until_s = time.monotonic() + _LONGEST_WAIT_S
        while self._cuda is not None and threads & _threads() and time.monotonic() < until_s:
            if not self._cuda.is_current_stream_capturing():
                self._cuda.current_stream().query()
            time.sleep(_PAUSE_S)
        if threads & _threads():
            self.attached_because = "kineto had not detached it half a second after the window"

    def _reset(self) -> None:
        if self._is_requested and os.environ.get(VARIABLE) == _DETACH:
            os.environ[VARIABLE] = _BETWEEN_WINDOWS
        self._is_requested = False


def find_obstacle(cuda_version: tuple[int, ...] | None, environment: Mapping[str, str]) -> str | None:
    """Find why CUPTI stays attached after a window; None where it is detached, or where there is no CUDA."""
    if cuda_version is None or environment.get(VARIABLE) == _DETACH:
        return None
    if environment.get(VARIABLE, _BETWEEN_WINDOWS) != _BETWEEN_WINDOWS:
        return f"the environment has {VARIABLE}={environment[VARIABLE]}"
    if cuda_version < _FIRST_SAFE_CUDA:
        return f"CUDA {'.'.join(map(str, cuda_version))} crashes where CUPTI is attached again beside CUDA graphs"
    return None


def read_cuda_version(torch: Any) -> tuple[int, ...] | None:
    """Read the version of CUDA that torch was built for; None for a torch without CUDA."""
    version = getattr(getattr(torch, "version", None), "cuda", None)
    return None if version is None else tuple(int(part) for part in str(version).split(".")[:2])


def _threads() -> set[str]:
    try:
        return set(os.listdir(_THREADS))
    except OSError:
        return set()
