"""Sees when the modules that FSDP 2 shards begin and end their forward passes, in single steps.

FSDP looks its methods up in their class at each call: they are replaced for a step, and cost nothing in the others.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

_BEGIN, _END = "pre_forward", "post_forward"


class ShardedUnits:
    """The methods of FSDP 2 around the forward pass of a module: its weights are there behind the first."""

    def __init__(self, group_class: Any) -> None:
        self._class = group_class
        self._originals: dict[str, Callable[..., Any]] = {}

    def watch(self, on_begin: Callable[[object], None], on_end: Callable[[object], None]) -> None:
        """Tell of each module's parameters before and after its forward pass; the functions raise nothing."""
        begin, end = getattr(self._class, _BEGIN, None), getattr(self._class, _END, None)
        if self._originals or begin is None or end is None:
            return

        @functools.wraps(begin)
        def pre_forward(group: Any, *args: object, **kwargs: object) -> Any:
            result = begin(group, *args, **kwargs)
            on_begin(group)
            return result

        @functools.wraps(end)
        def post_forward(group: Any, *args: object, **kwargs: object) -> Any:
            on_end(group)
            return end(group, *args, **kwargs)

        self._originals = {_BEGIN: begin, _END: end}
        self._class.pre_forward, self._class.post_forward = pre_forward, post_forward

    def leave(self) -> None:
        """Put the methods back."""
        for name, original in self._originals.items():
            setattr(self._class, name, original)
        self._originals = {}
