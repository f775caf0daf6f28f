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
