"""Which training steps and ranks are profiled.

A window is the steps FIRST to LAST, counted from 1 and inclusive. The step before it is the profiler's warm-up, so a
window cannot begin at step 1, and two windows need a step between them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from perfscope import wire

_RANGE = re.compile(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*")

#: One step with operators, which is dear, after two steps of start-up, six steady-state ones and the warm-up. The
#: median and the test of windows need five, so that one of them may be disturbed.
DEFAULT_WINDOWS = "10"
#: Steps of a light window, which is cheap, where the one with operators has fewer.
_FEWEST_LIGHT_STEPS = 3
#: ``--step-optimizer``: each outermost step of an optimizer is a training step.
EVERY = "every"
#: Between a window and its light one are the step after the export, and a warm-up step.
_STEPS_BEFORE_LIGHT = 2


class WindowChoice(StrEnum):
    """What is recorded of the chosen steps on a GPU; on a CPU every window records operators."""

    BOTH = "both"
    OPERATORS = wire.OPERATORS
    LIGHT = wire.LIGHT


@dataclass(frozen=True)
class StepWindow:
    """Training steps ``first`` to ``last``, inclusive, and what is recorded: ``wire.OPERATORS`` or ``wire.LIGHT``."""

    first: int
    last: int
    activities: str = wire.OPERATORS

    @property
    def is_light(self) -> bool:
        """Whether it records kernels and their launches alone."""
        return self.activities == wire.LIGHT

    def light_after(self) -> StepWindow:
        """The light window that follows this one: of as many steps, and three at least."""
        first = self.last + _STEPS_BEFORE_LIGHT + 1
        return StepWindow(first, first + max(self.last - self.first + 1, _FEWEST_LIGHT_STEPS) - 1, wire.LIGHT)

    def delayed(self, steps: int) -> StepWindow:
        """The window so many steps later."""
        return StepWindow(self.first + steps, self.last + steps, self.activities)

    def leaves_room_for(self, following: StepWindow) -> bool:
        """Whether a step is left for the warm-up of another window."""
        return following.first > self.last + 1

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


def parse_windows(text: str) -> tuple[StepWindow, ...]:
    """Read windows such as ``2-4,7-9``. Raises ValueError: one of them cannot be profiled; the message says why."""
    windows = sorted((_parse_window(part, text) for part in text.split(",")), key=lambda window: window.first)
    for window in windows:
        if window.first < 1 or window.last < window.first:
            raise ValueError(f"the window {window} is not a range of training steps, which count from 1")
        if window.first == 1:
            raise ValueError(f"the window {window} cannot be profiled: the step before a window warms the profiler up")
    for window, following in pairwise(windows):
        if not window.leaves_room_for(following):
            raise ValueError(f"the windows {window} and {following} leave no step between them for the warm-up")
    return tuple(windows)


def _parse_window(part: str, text: str) -> StepWindow:
    match = _RANGE.fullmatch(part)
    if match is None:
        raise ValueError(f"{text!r} names no training steps: write windows such as 2-4,7-9")
    return StepWindow(int(match[1]), int(match[2] or match[1]))


def parse_ranks(text: str) -> frozenset[int]:
    """Read ranks such as ``0,4-6``. Raises ValueError: the text names no ranks."""
    ranks: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ValueError(f"{text!r} names no ranks: write ranks such as 0,4-6")
        ranks.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(ranks)


def parse_step_optimizer(text: str) -> int | str:
    """Read which optimizer ends a training step. Raises ValueError: it is neither ``every`` nor a number from 1."""
    if text == EVERY:
        return EVERY
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{text!r} is neither the number of an optimizer, which count from 1, nor {EVERY!r}")
    return int(text)
