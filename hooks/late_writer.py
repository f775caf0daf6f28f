"""Writes the records of steps during training: up to two seconds after each, in another thread.

Making, encoding and writing a record takes longer than all other hooks of a step together. The first turns of the
thread are half a second apart, to show soon that a training has begun. A process that is killed loses the records of
its last two seconds, and leaves whole lines.
"""

from __future__ import annotations

import _thread
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from perfscope.hooks.guard import call_safely

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TypeAlias

    from perfscope.hooks.record_files import RecordFile

    #: A file, and what makes a line for it, with which arguments.
    QueuedRow: TypeAlias = tuple[RecordFile, Callable[..., bytes], tuple[Any, ...]]

#: How long a record waits at most.
PERIOD_S = 2.0
#: How long the records of the first so many turns wait.
FIRST_PERIOD_S = 0.5
FIRST_TURNS = 10
#: Between two glances at the training thread, for the first so many turns, and then in each seventh of them.
GLANCE_S = 0.1
GLANCE_TURNS, GLANCE_EACH = 60, 7
#: Records that are written without a pause, in which training may need the interpreter: half a millisecond.
_MOST_AT_ONCE = 128
_PAUSE_S = 0.002


class LateWriter:
    """Records that wait to be written, and the thread that writes them.

    ``append`` takes what ``add`` takes, in one, and asks nothing: the thread must run, and an ``error`` is not raised.
    The thread calls ``on_turn`` when it has done something, and ``glance`` ten times a second in some turns.
    """

    def __init__(
        self,
        read_beside: Callable[[], Mapping[str, object]] | None = None,
        look_beside: Callable[[], None] | None = None,
    ) -> None:
        self._rows: deque[QueuedRow] = deque()
        self.append: Callable[[QueuedRow], None] = self._rows.append
        self.error: BaseException | None = None
        self.on_turn: Callable[[], None] | None = None
        self.glance: Callable[[], None] | None = None
        self._read_beside = read_beside
        self._look_beside = look_beside
        self._values: Mapping[str, object] | None = None
        self._lock = threading.Lock()
        self._is_running = False
        self._is_closed = False
        self._spent_ns = self._reported_ns = 0

    def add(self, file: RecordFile, make_line: Callable[..., bytes], *arguments: object) -> None:
        """Append a line to a file soon; it is made as late as it is written.

        Raises Exception: an earlier one could not be written, because the disk is full or gone.
        """
        if self.error is not None:
            raise self.error
        self._rows.append((file, make_line, arguments))
        self.start()

    def start(self) -> None:
        """Start the thread, where it does not run.

        Python's list of threads does not have it: a script that joins all of them would wait for ever.
        """
        if not self._is_running:
            self._is_running = True
            _thread.start_new_thread(lambda: call_safely(self._run), ())

    def flush(self, most: int | None = None) -> None:
        """Write what waits, now, or so many records of it. Raises OSError: the disk is full or gone."""
        with self._lock:
            lines: dict[RecordFile, list[bytes]] = {}
            try:
                for _ in range(len(self._rows) if most is None else min(most, len(self._rows))):
                    file, make_line, arguments = self._rows.popleft()
                    lines.setdefault(file, []).append(make_line(*arguments))
            finally:  # of a row that makes no line the others are kept
                for file, content in lines.items():
                    file.append(b"".join(content))

    def close(self) -> None:
        """Write what waits, and let the thread end. Raises OSError: the disk is full or gone."""
        self._is_closed = True
        self.flush()

    def take_news(self) -> tuple[int, Mapping[str, object] | None]:
        """How long the processor worked in the thread since this was last asked, and what was read there meanwhile."""
        spent_ns, values, self._values = self._spent_ns, self._values, None
        new_ns, self._reported_ns = spent_ns - self._reported_ns, spent_ns
        return new_ns, values

    def _wait(self, turns: int) -> None:
        seconds = FIRST_PERIOD_S if turns < FIRST_TURNS else PERIOD_S
        if turns >= GLANCE_TURNS and turns % GLANCE_EACH:  # each time that a thread wakes up takes longer than a glance
            time.sleep(seconds)
            return
        for _ in range(round(seconds / GLANCE_S)):
            time.sleep(GLANCE_S)
            if self._is_closed:
                return
            if self.glance is not None:
                call_safely(self.glance)

    def _run(self) -> None:
        turns = 0
        while self.error is None and not self._is_closed:
            self._wait(turns)
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
                self.error = call_safely(lambda: self.flush(_MOST_AT_ONCE))[1]
                if self._rows:
                    time.sleep(_PAUSE_S)
            self._spent_ns = time.thread_time_ns()
            if self.on_turn is not None:
                self.on_turn()
