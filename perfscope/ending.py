"""The end of a process that runs one command: modules and tables are left to the system, not taken apart one by one.

To take them apart takes as long as to import NumPy, and longer where a large trace was read.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

#: What the system keeps of an exit code.
_EXIT_CODES = 0xFF


def run_and_end(run: Callable[[], object]) -> None:
    """Run a command, and end the process with its exit code; what others registered for its end runs before.

    Args:
        run: Runs the command, and raises SystemExit at its end.

    Raises:
        SystemExit: There is more in the process: threads, a profiler, a debugger; or its output cannot be written.
    """
    try:
        run()
    except SystemExit as ending:
        is_watched = sys.gettrace() is not None or sys.getprofile() is not None
        if isinstance(ending.code, int) and not is_watched and threading.active_count() == 1:
            with suppress(OSError, ValueError):  # Python's own end says so
                _flush()
                atexit._run_exitfuncs()  # noqa: SLF001 - what else runs them takes everything apart next
                _flush()
                os._exit(ending.code & _EXIT_CODES)
        raise


def _flush() -> None:
    """Write what stands in the buffers of the standard streams.

    Raises:
        OSError: It cannot be written.
        ValueError: One is closed.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
