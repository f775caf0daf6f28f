"""What results of traces have in common, and what is beside the results."""

from typing import NotRequired, TypedDict


class Windowed(TypedDict):
    """A result of traces.

    Attributes:
        window: What the window recorded that its times are of, ``operators`` or ``light``; only where that is known.
    """

    window: NotRequired[str]


class WindowsData(TypedDict):
    """Which windows the figures of the traces are of.

    Attributes:
        times: The window that times are of: ``operators`` or ``light``.
        causes: The window that operators, shapes and causes are of.
        notes: Which windows are left out, and why.
    """

    times: str | None
    causes: str | None
    notes: list[str]


class SkippedData(TypedDict):
    """An analyzer without a result.

    Attributes:
        analyzer: Its name.
        reason: Why.
    """

    analyzer: str
    reason: str
