"""Where the training thread is, ten times a second, in steps that take long and in the others.

The thread that writes records looks at the training thread's frames. A look takes some twenty microseconds and touches
no value of the script. What is kept are counts of places: the script's innermost line, and the function that it called
in a library. A step is long where it takes an eighth more than usual.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import time
from collections import Counter, deque
from typing import TYPE_CHECKING

from perfscope.constants import NS_PER_S
from perfscope.hooks.facts.secrets import redact_text
from perfscope.hooks.open_window import OPEN_WINDOW
from perfscope.wire.places import Place, PlacesRecord
from perfscope.wire.records import to_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType
    from typing import TypeAlias

    from perfscope.hooks.step import StepAccumulator

    #: Function, file and line of the script, and the library's function; empty for what there is not.
    Seen: TypeAlias = tuple[str, str, int, str]

#: Seconds between two writes.
_WRITE_S = 30.0
_LONG_SHIFT = 3
_DEEPEST = 60
#: Places, and functions, that are told apart.
_MOST_PLACES, _MOST_FUNCTIONS = 256, 4096
#: Measurements that the usual step is the lower quartile of: looks see long steps more often.
_MOST_MEASUREMENTS = 63
_LIBRARIES = (
    *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")},
    "/site-packages/", "/dist-packages/", "<",
)  # fmt: skip
_OURS = os.path.dirname(os.path.abspath(__file__))


class Places:
    """Counts of the places where the training thread was seen."""

    def __init__(self, step: StepAccumulator, thread: int, write: Callable[[bytes], None]) -> None:
        self._step, self._thread, self._write = step, thread, write
        self._usual: Counter[Seen] = Counter()
        self._long: Counter[Seen] = Counter()
        self._running: list[Seen] = []
        self._number, self._began_ns = step.steps, step.started_ns
        self._lengths_ns: deque[int] = deque(maxlen=_MOST_MEASUREMENTS)
        self._is_library: dict[CodeType, bool] = {}
        self._written_ns = time.monotonic_ns()

    def look(self) -> None:
        """See where the training thread is."""
        number, began_ns, now_ns = self._step.steps, self._step.started_ns, time.monotonic_ns()
        if number != self._number:
            self._close(number, began_ns)
        frame = None if OPEN_WINDOW.is_open else sys._current_frames().get(self._thread)
        if frame is None:
            return
        place = self._find_place(frame)
        del frame
        self._running.append(place)
        if now_ns - self._written_ns > _WRITE_S * NS_PER_S:
            self.write()

    def write(self) -> None:
        """Write all counts."""
        self._written_ns = time.monotonic_ns()
        root = os.getcwd() + os.sep
        seen = [place for place, _ in (self._usual + self._long).most_common(_MOST_PLACES)]
        places = tuple(
            Place(function, redact_text(file.removeprefix(root)), line, calls, self._usual[place], self._long[place])
            for place in seen
            for function, file, line, calls in (place,)
        )
        self._write(to_line(PlacesRecord(places)))

    def _close(self, number: int, began_ns: int) -> None:
        """Count the looks into the step that has ended; of several steps since then the mean length is known."""
        length_ns = (began_ns - self._began_ns) // (number - self._number)
        if self._number:  # the first step is like no other
            usual_ns = sorted(self._lengths_ns)[len(self._lengths_ns) // 4] if self._lengths_ns else length_ns
            counts = self._long if length_ns > usual_ns + (usual_ns >> _LONG_SHIFT) else self._usual
            counts.update(self._running)
            if len(counts) > 2 * _MOST_PLACES:
                counts -= Counter(dict(counts.most_common()[_MOST_PLACES:]))
            self._lengths_ns.append(length_ns)
        self._running.clear()
        self._number, self._began_ns = number, began_ns

    def _find_place(self, frame: FrameType) -> Seen:
        """The innermost frame of the script, and the function that it called."""
        called = ""
        current: FrameType | None = frame
        for _ in range(_DEEPEST):
            if current is None:
                break
            code = current.f_code
            if not self._is_of_library(code):
                return code.co_qualname, code.co_filename, current.f_lineno, called
            if not code.co_filename.startswith(_OURS):
                called = f"{current.f_globals.get('__name__', '')}.{code.co_qualname}"
            current = current.f_back
        return "", "", 0, called

    def _is_of_library(self, code: CodeType) -> bool:
        known = self._is_library.get(code)
        if known is None:
            if len(self._is_library) >= _MOST_FUNCTIONS:
                self._is_library.clear()
            name = code.co_filename
            known = self._is_library[code] = any(part in name for part in (*_LIBRARIES, _OURS))
        return known
