"""The text of a block for sweeps, which read many lines at once: all of it between two lines that rules read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perfscope.sources.joblog.log_format import OpenRule
from perfscope.sources.joblog.rules import LineMatch


@dataclass(frozen=True, slots=True)
class OpenSweep:
    """A sweep bound to a state; see ``Sweep``."""

    anchors: tuple[bytes, ...]
    on_text: Callable[[bytes], None]


class SweptText:
    """A block of text, and how much of it sweeps have read."""

    def __init__(self, text: bytes, sweeps: Sequence[OpenSweep]) -> None:
        self._text = text
        self._sweeps = sweeps
        self._read = 0

    @property
    def has_sweeps(self) -> bool:
        """Whether sweeps read the text, too."""
        return bool(self._sweeps)

    def apply(self, rule: OpenRule, line: LineMatch) -> None:
        """Apply a rule to its line, after the sweeps of all lines up to it: what they read may depend on its order."""
        if self._sweeps and not rule.is_apart:
            end = self._text.find(b"\n", line.end)
            self.sweep_to(len(self._text) if end < 0 else end + 1)
        rule.apply(line)

    def sweep_to(self, end: int) -> None:
        """Sweep the lines up to the end of one."""
        if not self._sweeps or end <= self._read:
            return
        lines = self._text[self._read : end]
        self._read = end
        for sweep in self._sweeps:
            if any(anchor in lines for anchor in sweep.anchors):
                sweep.on_text(lines)
