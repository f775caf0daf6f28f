"""Keeps every failure of a hook away from the training script, and counts the time that hooks take."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar, cast

_Method = TypeVar("_Method", bound=Callable[..., object])
_Value = TypeVar("_Value")
_HOOKS_FOLDER = os.path.join(os.path.dirname(__file__), "")


_thread = threading.local()
#: They record nothing in the children that this process forks, which share its files and its profiler.
captures: weakref.WeakSet[Any] = weakref.WeakSet()


def _end_captures() -> None:
    for capture in list(captures):
        capture.dead = True


os.register_at_fork(after_in_child=_end_captures)


def call_safely(action: Callable[[], _Value]) -> tuple[_Value | None, BaseException | None]:
    """Call something whose failure must not end training, nor the capture: its result, and the error that it raised."""
    try:
        return action(), None
    except BaseException as error:  # the hooks' outer edge: the caller reports it and training goes on
        if is_of_signal(error):
            raise
        return None, error


def value_or_none(read: Callable[[], _Value]) -> _Value | None:
    """Read a value from an object of the script or of a framework; None where reading it raises."""
    return call_safely(read)[0]


def hook_entry(method: _Method) -> _Method:
    """Make a method safe to call from training: no exception leaves it, and its time is added to ``hook_ns``.

    A failure calls ``abandon(reason)``. After it, and in a forked child, the object is ``dead``: the result is None.
    What a signal raises in it goes on to the script.
    """

    @functools.wraps(method)
    def enter(self: Any, *args: object, **kwargs: object) -> object:
        # the time of an entry that is called inside another one is that one's
        is_outermost = not getattr(_thread, "is_in_hook", False)
        began_ns = time.monotonic_ns() if is_outermost else 0
        _thread.is_in_hook = True
        try:
            return None if self.dead else method(self, *args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - the hooks' outer edge: training goes on without the capture
            abandon(self, error, method.__name__)
            return None
        finally:
            if is_outermost:
                _thread.is_in_hook = False
                self.hook_ns += time.monotonic_ns() - began_ns

    return cast("_Method", enter)


def abandon(capture: Any, error: BaseException, hook: str = "a hook") -> None:
    """End the capture after an error in a hook. Raises BaseException: the error, where a signal raised it."""
    capture.abandon(describe_failure(error, hook))
    if is_of_signal(error):
        raise error


def is_of_signal(error: BaseException) -> bool:
    """Whether an error is Ctrl-C's, or came out of a signal handler of the script: it may come at any moment.

    A property of the script that raises an error while a hook reads it is no signal.
    """
    if isinstance(error, KeyboardInterrupt):
        return True
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    functions = [(handler, getattr(handler, "func", None), type(handler).__call__) for handler in handlers if handler]
    codes = {getattr(function, "__code__", None) for each in functions for function in each} - {None}
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code not in codes:
        trace = trace.tb_next
    return trace is not None


def describe_failure(error: BaseException, hook: str = "a hook") -> str:
    """Name an error and the innermost function of the hooks that it passed through, this file's left out."""
    name, trace = hook, error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename.startswith(_HOOKS_FOLDER) and code.co_filename != __file__:
            name = code.co_qualname.replace("<locals>.", "")
        trace = trace.tb_next
    return f"{name} failed: {value_or_none(lambda: repr(error)) or type(error).__name__}"
