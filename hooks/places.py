"""Where the training thread is, in steps that take long and in the others.

The thread that writes records looks at the training thread's frames, ten times a second: in the first two minutes, then
for two of fourteen seconds. A look takes some ten microseconds, touches no value of the script and keeps none alive.
What is kept are counts of places: the script's innermost line, and the function that it called in a library. A step is
long where it takes an eighth more than usual.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import sysconfig
import time
from collections import Counter, deque
from itertools import accumulate, chain, compress, repeat, takewhile
from operator import attrgetter, methodcaller, truth
from typing import TYPE_CHECKING

from perfscope.constants import NS_PER_S
from perfscope.hooks.facts.secrets import redact_text
from perfscope.hooks.guard import value_or_none
from perfscope.hooks.open_window import OPEN_WINDOW
from perfscope.wire.places import Place, PlacesRecord
from perfscope.wire.records import to_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    from perfscope.hooks.step import StepAccumulator

    #: Function, file and line of the script, and the library's function; empty for what there is not.
    Seen: TypeAlias = tuple[str, str, int, str]

#: Seconds between two writes.
_WRITE_S = 30.0
_LONG_SHIFT = 3
#: Functions of a stack that are looked at; those of the first number suffice for most.
_DEPTHS = 16, 100
#: Places, and files, that are told apart.
_MOST_PLACES, _MOST_FILES = 256, 4096
#: Measurements that the usual step is the lower quartile of: looks see long steps more often.
_MOST_MEASUREMENTS = 63
_OURS = os.path.dirname(os.path.abspath(__file__))
_FOLDERS = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
#: What the names of libraries' files hold, the innermost folder first.
_LIBRARIES = ("/site-packages/", "/dist-packages/", *sorted(_FOLDERS, key=len, reverse=True), _OURS, "<")
_COLLECTS_ANYWHERE = sys.version_info < (3, 12)
_call = methodcaller("__call__")
#: File, function and line of a frame.
_read_frame = attrgetter("f_code.co_filename", "f_code.co_qualname", "f_lineno")


class Places:
    """Counts of the places where the training thread was seen."""

    def __init__(self, step: StepAccumulator, thread: int, write: Callable[[bytes], None]) -> None:
        self._step, self._thread, self._write = step, thread, write
        self._usual: Counter[Seen] = Counter()
        self._long: Counter[Seen] = Counter()
        self._running: Counter[Seen] = Counter()
        self._number, self._began_ns = 0, step.started_ns  # which the first step has until its hooks are done
        self._lengths_ns: deque[int] = deque(maxlen=_MOST_MEASUREMENTS)
        self._written_ns, self._written_number = time.monotonic_ns(), 0
        self._root = os.path.join(value_or_none(os.getcwd) or "", "")

    def look(self) -> None:
        """See where the training thread is."""
        began_ns, number, now_ns = self._step.started_ns, self._step.steps, time.monotonic_ns()
        if number != self._number and began_ns != self._began_ns:  # a step that is counted goes on with its hooks
            self._close(number, began_ns)
        place = None if OPEN_WINDOW.is_open else find_place(self._thread)
        if place is None:
            return
        if place in self._running or len(self._running) < _MOST_PLACES:  # a step may last for days
            self._running[place] += 1
        if now_ns - self._written_ns > _WRITE_S * NS_PER_S and self._number != self._written_number:
            self.write()

    def write(self) -> None:
        """Write all counts."""
        self._written_ns, self._written_number = time.monotonic_ns(), self._number
        seen = [place for place, _ in (self._usual + self._long).most_common(_MOST_PLACES)]
        places = tuple(
            Place(
                function, redact_text(file.removeprefix(self._root)), line, calls, self._usual[place], self._long[place]
            )
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


def read_stack(thread: int, depth: int) -> list[tuple[str, str, int]]:
    """What ``_read_frame`` reads of each function that a thread is in, the innermost first; none where it is gone.

    The list is made in one call of C code, in which no other thread runs. A frame that is kept for longer would keep
    what its function returns from: the script's objects would end later, and in this thread.

    Up to Python 3.11 the interpreter holds a lock while it makes the frames (python/cpython#106883). A collection of
    garbage in there may let another thread run, which waits for that lock if it begins or ends: nothing would go on. So
    none comes during the call.
    """
    if not _COLLECTS_ANYWHERE:
        return list(_walk(thread, depth))
    collects: list[bool] = []
    begin = chain(map(collects.append, map(_call, (gc.isenabled,))), map(_call, (gc.disable,)))
    end = map(_call, compress((gc.enable,), collects))
    try:
        return list(filter(None, chain(begin, _walk(thread, depth), end)))
    except BaseException:  # an audit hook of the script
        if collects == [True]:
            gc.enable()
        raise


def _walk(thread: int, depth: int) -> Iterator[tuple[str, str, int]]:
    found = map(methodcaller("get", thread), map(_call, (sys._current_frames,)))
    return map(_read_frame, takewhile(truth, accumulate(chain(found, repeat("f_back", depth)), getattr)))


def find_place(thread: int) -> Seen | None:
    """The innermost function of the script, and the library's function that it called; None for no such thread."""
    called = None
    for depth in _DEPTHS:
        called = None
        for file, function, line in read_stack(thread, depth):
            module = _find_module(file)
            if module is None:
                return function, file, line or 0, called or ""
            if not file.startswith(_OURS):
                called = f"{module}.{function}" if module else function
    return None if called is None else ("", "", 0, called)


@functools.lru_cache(_MOST_FILES)
def _find_module(file: str) -> str | None:
    """The module that a library's file is, empty for code without a file; None for a file of the script."""
    library = next((part for part in _LIBRARIES if part in file), None)
    if library is None:
        return None
    name = "" if library == "<" else file.rpartition(library)[2]
    return name.removesuffix(".py").removesuffix("/__init__").strip("/").replace("/", ".")
