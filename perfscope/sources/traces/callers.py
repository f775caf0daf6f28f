"""Finds the operators that may wait for a device, and the script's own functions: who made a call that waits."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from msgspec.structs import replace

from perfscope.tables.columns import Bool
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
