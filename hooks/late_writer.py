"""Writes the records of steps beside training: up to two seconds after each, in a thread of its own.

To make a record, to encode and to write it takes longer than all other hooks of a step together, because nothing of the
code is in the processor's caches after a step's work. The thread does it for several records at once, while training
waits for the device, and reads what else changes slowly.

A turn finds none of its code and objects in a cache, so that few turns with many records cost less than many turns with
few: the first ones are half a second apart, so that a training that has begun shows soon, and later ones two seconds. A
turn waits for another half second while a profiler window is open, so that it is not in the steps of a short one. A
process that is killed loses the records of its last two seconds, or of two and a half in a window, and leaves whole
lines.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from perfscope.hooks.guard import call_safely
from perfscope.hooks.open_window import OPEN_WINDOW

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TypeAlias

    #: A file, and what makes a line for it, or several, with which arguments.
    QueuedRow: TypeAlias = tuple[int, Callable[..., bytes], tuple[Any, ...]]

#: How long a record waits at most.
PERIOD_S = 2.0
#: How long the records of the first so many turns wait, and those of an open window besides.
FIRST_PERIOD_S = 0.5
FIRST_TURNS = 10
#: So many of the shorter periods longer where a profiler window is open.
_MOST_RESTS = 1
#: Records that are written without a pause, in which training may need the interpreter: half a millisecond.
_MOST_AT_ONCE = 128
_PAUSE_S = 0.002


class LateWriter:
    """Records that wait to be written, and the thread that writes them.

    Attributes:
        append: Takes what ``add`` takes, in one, and asks nothing: the thread must run, and an error is not raised.
        error: Why a record could not be written; None where all could.
        has_news: Whether the thread has done something since ``take_news`` was last called.
        on_turn: Called by the thread when it has.
    """

    def __init__(
        self,
        read_beside: Callable[[], Mapping[str, object]] | None = None,
        look_beside: Callable[[], None] | None = None,
        before_write: Callable[[int, int], None] | None = None,
    ) -> None:
        self._rows: deque[QueuedRow] = deque()
        self.append: Callable[[QueuedRow], None] = self._rows.append
        self.error: Exception | None = None
        self.has_news = False
        self.on_turn: Callable[[], None] | None = None
        self._read_beside = read_beside
        self._look_beside = look_beside
        #: Told the file and the number of lines before each write.
        self._before_write = before_write
        self._values: Mapping[str, object] | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._spent_ns = 0
        self._reported_ns = 0

    def add(self, descriptor: int, make_line: Callable[..., bytes], *arguments: object) -> None:
        """Append a line to a file soon; it is made as late as it is written.

        Raises:
            Exception: An earlier one could not be written, because the disk is full or gone.
        """
        if self.error is not None:
            raise self.error
        self._rows.append((descriptor, make_line, arguments))
        self.start()

    def start(self) -> None:
        """Start the thread, where it does not run."""
        if self._thread is None:
            self._thread = threading.Thread(target=lambda: call_safely(self._run), name="perfscope", daemon=True)
            self._thread.start()

    def flush(self, most: int | None = None) -> None:
        """Write what waits, now, or so many records of it.

        Raises:
            OSError: The disk is full or gone.
        """
        rows, take = self._rows, self._rows.popleft
        with self._lock:
            lines: dict[int, list[bytes]] = {}
            last, content = -1, list[bytes]()
            for _ in range(len(rows) if most is None else min(most, len(rows))):
                descriptor, make_line, arguments = take()
                if descriptor != last:
                    last, content = descriptor, lines.setdefault(descriptor, [])
                content.append(make_line(*arguments))
            for descriptor, content in lines.items():
                lines_of_file = b"".join(content)
                if self._before_write is not None:
                    self._before_write(descriptor, lines_of_file.count(b"\n"))
                write_whole(descriptor, lines_of_file)

    def close(self) -> None:
        """Write what waits, and let the thread end.

        Raises:
            OSError: The disk is full or gone.
        """
        self._is_closed = True
        self.flush()

    def take_news(self) -> tuple[int, Mapping[str, object] | None]:
        """How long the processor worked in the thread since this was last asked, and what was read there meanwhile."""
        self.has_news = False
        spent_ns = self._spent_ns
        new_ns, self._reported_ns = spent_ns - self._reported_ns, spent_ns
        values, self._values = self._values, None
        return new_ns, values

    def _flush_some(self) -> None:
        self.flush(_MOST_AT_ONCE)

    def _run(self) -> None:
        turns = rests = 0
        while self.error is None and not self._is_closed:
            time.sleep(FIRST_PERIOD_S if rests or turns < FIRST_TURNS else PERIOD_S)
            rests = rests + 1 if OPEN_WINDOW.is_open and rests < _MOST_RESTS else 0
            if rests:
                continue
            turns += 1
            if self._look_beside is not None:
                call_safely(self._look_beside)
            if not self._rows:
                continue
            if self._read_beside is not None:
                values = call_safely(self._read_beside)[0]
                if values:
                    self._values = {**(self._values or {}), **values}
            while self._rows and self.error is None:
                self.error = call_safely(self._flush_some)[1]
                if self._rows:
                    time.sleep(_PAUSE_S)
            self._spent_ns = time.thread_time_ns()
            self.has_news = True
            if self.on_turn is not None:
                self.on_turn()


def write_whole(descriptor: int, content: bytes) -> None:
    """Write whole lines at once.

    Raises:
        OSError: The disk is full or gone.
    """
    if os.write(descriptor, content) != len(content):
        raise OSError("the disk is full: a record was cut")
