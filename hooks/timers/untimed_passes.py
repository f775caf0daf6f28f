"""Whether the passes of the running step are timed, for the wrappers around them, which only count where they are not.

This stands apart from the capture: a wrapper that asks must not begin one, as in a launcher that only imports torch.
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
