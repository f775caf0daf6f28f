"""Keeps the last collectives that the training thread launched, in memory that outlives the process.

No step makes a system call for it. The memory belongs to no folder: no disk can be full, and nobody can take it away,
which would end the process.
"""

from __future__ import annotations

import mmap
import os
import resource
from typing import Any

from perfscope.wire.launched_calls import (
    BACKWARD,
    MEMORY_NAME,
    NUMBERS,
    RING,
    SIZE_BYTES,
    STEP_NUMBER,
    UNKNOWN_GROUP,
    to_word,
)

#: One more open file is a small share of so many.
_FEWEST_FILES = 64
_BACKWARD_WORD = to_word(NUMBERS[BACKWARD], None, 0)


class LaunchedCalls:
    """The calls of one thread; nothing is kept before ``begin``."""

    def __init__(self) -> None:
        self._words: memoryview | None = None
        self._count = 0
        self._steps = 0
        self._groups: dict[str, int] = {}

    def begin(self) -> None:
        """Keep calls from now on, where the system has such memory.

        Raises:
            OSError: There is no memory left.
        """
        if not hasattr(os, "memfd_create") or resource.getrlimit(resource.RLIMIT_NOFILE)[0] < _FEWEST_FILES:
            return  # the script may need every one of its files
        descriptor = os.memfd_create(MEMORY_NAME)
        try:
            os.write(descriptor, bytes(SIZE_BYTES))  # its pages exist: no later store can fail
            self._words = memoryview(mmap.mmap(descriptor, SIZE_BYTES)).cast("Q")  # has a descriptor of its own
        finally:
            os.close(descriptor)
        os.register_at_fork(after_in_child=self._forget)

    def add(self, name: str, group: Any, arguments: Any) -> None:
        """A method of a ``ProcessGroup`` is about to be called with these arguments, tensors first."""
        number = self._groups.setdefault(str(group.group_name), len(self._groups))
        first = arguments
        while isinstance(first, list | tuple) and first:
            first = first[0]
        elements = first.numel() if hasattr(first, "numel") else 0
        self._add(to_word(NUMBERS[name], number if number < UNKNOWN_GROUP else None, elements))

    def add_backward(self) -> None:
        """A backward pass is about to begin."""
        self._add(_BACKWARD_WORD)

    def end_step(self) -> None:
        """A step has ended."""
        self._steps += 1
        self._add(to_word(STEP_NUMBER, None, self._steps))

    def _forget(self) -> None:
        """A forked child does not share the memory."""
        self._words = None

    def _add(self, word: int) -> None:
        words = self._words
        if words is not None:
            words[1 + self._count % RING] = word
            self._count += 1
            words[0] = self._count
