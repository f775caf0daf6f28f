"""Whether a window is open in this process, for hooks that only matter then, and what rests meanwhile."""

from __future__ import annotations


class OpenWindow:
    """The state of this process, which has one profiler.

    Attributes:
        is_open: Whether a window is open, its warm-up step included.
        records_ranges: Whether a window is open that records ranges of the host.
    """

    is_open = False
    records_ranges = False


OPEN_WINDOW = OpenWindow()


class UntimedPasses:
    """Tells wrappers of passes whether the running step is timed, without a capture, which they must not begin.

    Attributes:
        rest: The passes of the step that runs are not timed.
        forwards: Forward passes of the step that runs.
    """

    rest = False
    forwards = 0


UNTIMED = UntimedPasses()
