"""What hooks ask of this process without a capture, which they must not begin."""

from __future__ import annotations


class OpenWindow:
    """Whether a window is open, its warm-up step included, and whether it records ranges of the host."""

    is_open = False
    records_ranges = False


OPEN_WINDOW = OpenWindow()


class UntimedPasses:
    """Whether passes of the running step are not timed (``rest``), and how many of them ran forward."""

    rest = False
    forwards = 0


UNTIMED = UntimedPasses()
