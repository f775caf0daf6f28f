"""Finds the operators that may wait for a device, and the script's own Python functions, among all others.

They tell who made a call that waits. Most operators and most Python functions of a trace are others: two letters of
every name are looked up first, so that these cost next to nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from msgspec.structs import replace

from perfscope.tables.columns import Bool, Int64
from perfscope.tables.trace import ABSENT, Events, HostSpans

#: Operators that copy a result to the host, or need one of it.
_WAITING = (
    "item", "_local_scalar_dense", "nonzero", "is_nonzero", "_to_copy", "copy_", "masked_select", "_unique2",
    "unique_dim", "unique_consecutive", "equal", "bincount", "repeat_interleave",
)  # fmt: skip
_OPERATOR = re.compile(rf"aten::(?:{'|'.join(_WAITING)})\Z")
#: Libraries and Python's own files are not the script's; a name is ``file(line): function``.
_FUNCTION = re.compile(
    r"(?!torch/|<|nn\.Module|.*site-packages/|.*/lib/python\d|perfscope/|(?:contextlib|functools|threading|runpy)\.py\()"
    r".*\.py\(\d+\): "
)
_BEFORE = {Events.OPERATORS: len('"aten::'), Events.FRAMES: 1}
_UNTIL_NAME = re.compile(rb'(?:cpu_op|python_function)",\s*"name":\s*')
_KEY_LETTERS = 0, 2
_MAY_WAIT = np.zeros((256, 256), np.bool_)
_MAY_WAIT[tuple(np.array([[ord(name[letter]) for name in _WAITING] for letter in _KEY_LETTERS]))] = True
_LIBRARY, _SLASH, _BUILT_IN = ord("t"), ord("/"), ord("<")
_UNTIL_SLASH = len("torch")


@lru_cache(maxsize=1 << 14)
def is_caller(name: str, kind: Events) -> bool:
    """Whether an event of this name tells who made a call."""
    return bool(_OPERATOR.match(name) if kind is Events.OPERATORS else _FUNCTION.match(name))


def are_callers(names: Iterable[str], kind: Events) -> Bool:
    """Which names are those of events that tell who made a call."""
    return np.array([is_caller(name, kind) for name in names], np.bool_)


def without_ids(spans: HostSpans) -> HostSpans:
    """Callers with their times and threads alone: not every way to read them gives the rest."""
    unknown = np.full(len(spans), ABSENT, np.int64)
    return replace(spans, process=unknown, correlation=unknown, external_id=unknown)


class CallerFilter:
    """Chooses operators and Python functions by the first letters of their names."""

    def __init__(self) -> None:
        self._until_name: dict[Events, int] = {}

    def choose(self, text: bytes, categories: Int64, kind: Events) -> Bool:
        """Which events may tell who made a call: the positions of their categories are given; all where unsure."""
        if not len(categories):
            return np.zeros(0, np.bool_)
        if kind not in self._until_name:
            match = _UNTIL_NAME.match(text, int(categories[0]))
            if match is None:
                return np.ones(len(categories), np.bool_)
            # An exporter writes every event alike.
            self._until_name[kind] = len(match[0]) + _BEFORE[kind]
        names = categories + self._until_name[kind]
        letters = np.frombuffer(text, np.uint8)
        first, third = (letters.take(names + letter, mode="clip") for letter in _KEY_LETTERS)
        if kind is Events.OPERATORS:
            return np.asarray(_MAY_WAIT[first, third])
        is_of_library = (first == _LIBRARY) & (letters.take(names + _UNTIL_SLASH, mode="clip") == _SLASH)
        return np.asarray(~is_of_library & (first != _BUILT_IN))
