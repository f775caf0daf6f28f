"""Whether a window is open in this process, for hooks that only matter then and are called hundreds of times a step."""

from __future__ import annotations


class OpenWindow:
    """The state of this process, which has one profiler.

    Attributes:
        records_ranges: Whether a window is open that records ranges of the host.
    """

    records_ranges = False


OPEN_WINDOW = OpenWindow()
