"""Writes the records of steps beside training: at the latest half a second after each, in a thread of its own.

To make a record, to encode and to write it takes longer than all other hooks of a step together, because nothing of the
code is in the processor's caches after a step's work. The thread does it for several records at once, while training
waits for the device. A process that is killed loses the records of its last half second, and leaves whole lines.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from perfscope import wire
from perfscope.hooks.guard import call_safely

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    from perfscope.wire import StepRecord
    from perfscope.wire.passes import MicroBatchRecord

    #: A file, and what makes a record for it with which arguments.
    QueuedRecord: TypeAlias = tuple[int, Callable[..., StepRecord | MicroBatchRecord], tuple[Any, ...]]

#: How long a record waits at most.
PERIOD_S = 0.5
#: Records that are written without a pause, in which training may need the interpreter.
_MOST_AT_ONCE = 16
_PAUSE_S = 0.002


class LateWriter:
    """Records that wait to be written, and the thread that writes them."""

    def __init__(self) -> None:
        self._records: deque[QueuedRecord] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._is_closed = False
        self._spent_ns = 0

    def add(self, descriptor: int, make_record: Callable[[], StepRecord | MicroBatchRecord]) -> None:
        """Append a record to a file soon; it is made as late as it is written.

        Raises:
            Exception: An earlier record could not be written, because the disk is full or gone.
        """
        if self._error is not None:
            raise self._error
        self._records.append((descriptor, make_record, ()))
        if self._thread is None:
            self._thread = threading.Thread(target=lambda: call_safely(self._run), name="perfscope", daemon=True)
            self._thread.start()

    def flush(self, most: int | None = None) -> None:
        """Write what waits, now, or so many records of it.

        Raises:
            OSError: The disk is full or gone.
        """
        with self._lock:
            began_ns = time.thread_time_ns()
            lines: dict[int, list[bytes]] = {}
            remaining = most if most is not None else -1
            while self._records and remaining:
                remaining -= 1
                descriptor, make_record, arguments = self._records.popleft()
                lines.setdefault(descriptor, []).append(wire.to_line(make_record(*arguments)))
            for descriptor, content in lines.items():
                write_whole(descriptor, b"".join(content))
            self._spent_ns += time.thread_time_ns() - began_ns

    @property
    def enqueue(self) -> Callable[[QueuedRecord], None]:
        """Takes what ``add`` takes, and asks nothing: the thread must run, and an error shows in the next ``add``."""
        return self._records.append

    def close(self) -> None:
        """Write what waits, and let the thread end.

        Raises:
            OSError: The disk is full or gone.
        """
        self._is_closed = True
        self.flush()

    def take_spent_ns(self) -> int:
        """How long the processor worked on records since this was last asked."""
        spent_ns = self._spent_ns
        if spent_ns:
            self._spent_ns -= spent_ns
        return spent_ns

    def _run(self) -> None:
        while self._error is None and not self._is_closed:
            time.sleep(PERIOD_S)
            while self._records and self._error is None:
                self._error = call_safely(lambda: self.flush(_MOST_AT_ONCE))[1]
                time.sleep(_PAUSE_S)


def write_whole(descriptor: int, content: bytes) -> None:
    """Write whole lines at once.

    Raises:
        OSError: The disk is full or gone.
    """
    if os.write(descriptor, content) != len(content):
        raise OSError("the disk is full: a record was cut")
