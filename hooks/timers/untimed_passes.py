"""Tells wrappers of passes whether the running step is timed; in an untimed step they only count.

This is separate from the capture: a wrapper must not begin a capture, as in a launcher that only imports torch.
"""

from __future__ import annotations


class UntimedPasses:
    """The state of this process.

    Attributes:
        rest: The passes of the step that runs are not timed.
        forwards: Forward passes of the step that runs.
    """

    rest = False
    forwards = 0


UNTIMED = UntimedPasses()
