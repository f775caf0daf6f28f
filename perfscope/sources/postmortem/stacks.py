"""Reads stacks as Python's faulthandler writes them.

An example::

Current thread 0x00007f45bb7fe6c0 (most recent call first):
  File "/work/train.py", line 9 in <module>
"""

from __future__ import annotations

import re

from perfscope.tables.postmortem import CodeLine, ThreadStack

_THREAD = re.compile(r"^(?:Current thread|Thread) (0x[0-9a-f]+)[^:]*\(most recent call first\):$")
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')


def parse_stacks(text: str) -> list[ThreadStack]:
    """The stacks of all threads, in the order of the text; lines of another kind are passed over."""
    stacks: list[tuple[str, list[CodeLine]]] = []
    for line in text.splitlines():
        thread = _THREAD.match(line)
        frame = _FRAME.match(line)
        if thread is not None:
            stacks.append((thread[1], []))
        elif frame is not None and stacks:
            stacks[-1][1].append(CodeLine(frame["file"], int(frame["line"]), frame["function"]))
    return [ThreadStack(thread, tuple(frames)) for thread, frames in stacks]


def find_training_stack(stacks: list[ThreadStack], thread: str | None) -> ThreadStack | None:
    """The stack of the thread that trains: by its name, else the main thread, which faulthandler writes last."""
    named = next((stack for stack in stacks if thread is not None and int(stack.thread, 16) == int(thread, 16)), None)
    return named or (stacks[-1] if stacks else None)
