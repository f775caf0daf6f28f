"""Finds the process group whose work the training thread waits for: a wait by itself does not say it.

A group is known where its work is launched. The methods of ``ProcessGroup`` return the work that is waited for. The
result of a functional collective, as in tensor parallelism, is waited for at its first use. The first groups of a step,
which are the axes of parallelism, are separate; all others count as one.
"""

from __future__ import annotations

import functools
import sys
import threading
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from perfscope.hooks.guard import call_safely
from perfscope.hooks.introspection import COMPILER
from perfscope.hooks.timers.launched_calls import LaunchedCalls
from perfscope.wire.host import MOST_GROUPS
from perfscope.wire.launched_calls import LAUNCHES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

_get_ident = threading.get_ident
_FUNCTIONAL = "_functional_collectives.py"
#: A functional collective makes its result by a custom operator, whose calls lie between.
_DEEPEST = 24


class ExchangeGroups:
    """The groups whose work one thread launched.

    Attributes:
        reducer: The number of the group of DistributedDataParallel, which waits without Python; None where there is
            none, or are several.
        calls: The last collectives that the thread launched.
    """

    def __init__(self) -> None:
        self.calls = LaunchedCalls()
        self.reducer: int | None = None
        self._numbers: dict[str, int | None] = {}
        self._facts: list[dict[str, object]] = []
        self._works: WeakKeyDictionary[object, int | None] = WeakKeyDictionary()
        self._reducers: list[Any] = []
        self._write: Callable[[Sequence[dict[str, object]]], None] | None = None

    def add_reducer(self, group: object) -> None:
        """DistributedDataParallel reduces gradients in this group."""
        if all(group is not reducer for reducer in self._reducers):
            self._reducers.append(group)
        if self._write is not None:
            self._find_reducer()

    def begin(self, c10d: Any, thread: int | None, write: Callable[[Sequence[dict[str, object]]], None]) -> None:
        """Learn the group of all work that a thread launches from now on.

        Args:
            c10d: The module ``torch.distributed.distributed_c10d``.
            thread: The thread.
            write: Gets the ranks and the description of every group that is told apart, when there is another one.
        """
        self._write = write
        self._find_reducer()
        call_safely(self.calls.begin)
        for name in LAUNCHES:
            if hasattr(c10d.ProcessGroup, name):
                self._wrap_launch(c10d.ProcessGroup, name, thread)
        functional = sys.modules.get("torch.distributed._functional_collectives")
        if functional is not None and hasattr(functional, "AsyncCollectiveTensor"):
            self._wrap_result(functional.AsyncCollectiveTensor, thread)

    def group_of(self, work: object) -> int | None:
        """The number of the group that a work belongs to; None where it is not known."""
        return self._works.get(work)

    def group_of_result(self, result: object) -> int | None:
        """The number of the group whose functional collective gave a result; None where it is not known."""
        number: int | None = getattr(result, "_perfscope_group", None)
        return number

    def _find_reducer(self) -> None:
        self.reducer = self._number(self._reducers[0]) if len(self._reducers) == 1 else None

    def _number(self, group: Any) -> int | None:
        """The number of a group among those that are told apart; None behind the last."""
        name = str(group.group_name)
        if name not in self._numbers:
            self._numbers[name] = None
            if len(self._facts) < MOST_GROUPS:
                c10d = sys.modules["torch.distributed.distributed_c10d"]
                self._numbers[name] = len(self._facts)
                ranks = [int(rank) for rank in c10d.get_process_group_ranks(group)]
                self._facts.append({"ranks": ranks, "description": str(getattr(group, "group_desc", ""))})
                if self._write is not None:
                    self._write(self._facts)
        return self._numbers[name]

    def _wrap_launch(self, group_class: Any, name: str, thread: int | None) -> None:
        original = getattr(group_class, name)

        def launch(group: Any, *args: object, **kwargs: object) -> Any:
            number = None
            if _get_ident() == thread and not COMPILER.is_tracing():
                number = call_safely(lambda: self._add(name, group, args))[0]  # what fails in it may end the process
            work = original(group, *args, **kwargs)
            if work is not None and number is not None:
                call_safely(lambda: self._works.__setitem__(work, number))
            return work

        # A group that is written in Python asks for its own method by this name, and must not find this one in it.
        launch.__code__ = launch.__code__.replace(co_name=name)
        setattr(group_class, name, functools.update_wrapper(launch, original))

    def _add(self, name: str, group: object, arguments: Sequence[object]) -> int | None:
        """A collective is about to be launched; gives the number of its group."""
        number = self._number(group)
        self.calls.add(name, number, arguments[0] if arguments else None)
        return number

    def _wrap_result(self, result_class: Any, thread: int | None) -> None:
        original = result_class.__new__

        @functools.wraps(original)
        def make(cls: Any, *args: object, **kwargs: object) -> Any:
            result = original(cls, *args, **kwargs)
            if _get_ident() == thread and not COMPILER.is_tracing():
                call_safely(lambda: self._mark(result, sys._getframe(3)))  # of what made it
            return result

        result_class.__new__ = staticmethod(make)

    def _mark(self, result: Any, frame: FrameType | None) -> None:
        """Note the group of a functional collective in its result: the function that made it has it."""
        for _ in range(_DEEPEST):
            if frame is None:
                return
            names = frame.f_locals if frame.f_code.co_filename.endswith(_FUNCTIONAL) else {}
            if "group" in names:
                functional = sys.modules["torch.distributed._functional_collectives"]
                c10d = sys.modules["torch.distributed.distributed_c10d"]
                name = functional._resolve_group_name(names["group"], names.get("tag", ""))
                result._perfscope_group = self._number(c10d._resolve_process_group(name))
                return
            if frame.f_code.co_name == "__torch_dispatch__" and names:  # a view of a result that nobody waited for
                numbers = [self.group_of_result(argument) for argument in names.get("args", ())]
                result._perfscope_group = next((number for number in numbers if number is not None), None)
                return
            frame = frame.f_back
