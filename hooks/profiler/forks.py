"""Lets the processes that training forks end, although their parent has or had a profiler.

From the first window on, torch's profiler has a thread that waits on a condition variable until the process ends. A
forked child inherits the waiting but not the thread, so the destructor that C's ``exit`` runs would wait for ever. A
profiler that was active at the fork would crash the child. So a child leaves out what its parent registered for C's
``exit``: after Python's own end, with all that a script registers in ``atexit``, it flushes C's streams and ends.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable

from perfscope.hooks.guard import call_safely

_registered_for: list[int] = []


def protect_children(on_fork: Callable[[], None]) -> None:
    """Call something in every process that this one forks, and let them end; where it was called before, do nothing.

    It is called before torch's profiler starts for the first time.
    """
    if os.getpid() in _registered_for:
        return
    _registered_for[:] = [os.getpid()]
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "on_exit") or not hasattr(libc, "fcloseall"):
        return  # not the GNU library, for which torch is not built
    libc.on_exit.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    # Each is called with the exit status as its first argument, the last one registered first.
    functions = [ctypes.cast(function, ctypes.c_void_p) for function in (libc._exit, libc.fcloseall)]

    def in_child() -> None:
        for function in functions:
            libc.on_exit(function, None)
        call_safely(on_fork)

    os.register_at_fork(after_in_child=in_child)


def stop_recording(*, with_stack: bool) -> None:
    """Stop recording in a forked child, whose inherited profiler is active; the device's part of it is not touched."""
    sys.modules["torch"]._C._autograd._clear_callbacks()
    if with_stack:
        sys.setprofile(None)
