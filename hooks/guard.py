"""Keeps every failure of a hook away from the training script, and counts the time that hooks take."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar, cast

_Method = TypeVar("_Method", bound=Callable[..., object])
_Value = TypeVar("_Value")
_thread = threading.local()
_HOOKS_FOLDER = os.path.join(os.path.dirname(__file__), "")


class HookOwner(Protocol):
    """An object whose methods are hook entries.

    Attributes:
        hook_ns: Time that hook entries took; the owner reads it and sets it back to 0.
    """

    hook_ns: int

    @property
    def dead(self) -> bool:
        """True after a failure: nothing more is recorded."""

    @property
    def pid(self) -> int:
        """The process that the owner belongs to; a forked child records nothing."""

    def abandon(self, reason: str) -> None:
        """End the capture after a failure."""


def call_safely(action: Callable[[], _Value]) -> tuple[_Value | None, Exception | None]:
    """Call something whose failure must not end training, nor the capture: its result, and the error that it raised."""
    try:
        return action(), None
    except Exception as error:  # noqa: BLE001 - the hooks' outer edge: the caller reports it and training goes on
        return None, error


def value_or_none(read: Callable[[], _Value]) -> _Value | None:
    """Read a value from an object of the script or of a framework; None where reading it raises."""
    return call_safely(read)[0]


def hook_entry(method: _Method) -> _Method:
    """Make a method safe to call from training: no exception leaves it, and its time counts as the hooks' time.

    In a forked child, and after a failure, the method is not called and the result is None.
    """

    @functools.wraps(method)
    def enter(self: HookOwner, *args: object, **kwargs: object) -> object:
        # An entry that is called inside another one is covered by the time and the process check of that one.
        is_outermost = not getattr(_thread, "is_in_hook", False)
        began_ns = time.monotonic_ns() if is_outermost else 0
        _thread.is_in_hook = True
        try:
            if self.dead or (is_outermost and os.getpid() != self.pid):
                return None
            return method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the hooks' outer edge: training goes on without the capture
            self.abandon(value_or_none(functools.partial(_describe_failure, error)) or f"{method.__name__} failed")
            return None
        finally:
            if is_outermost:
                _thread.is_in_hook = False
                self.hook_ns += time.monotonic_ns() - began_ns

    return cast("_Method", enter)


def _describe_failure(error: Exception) -> str:
    """Name an error and the innermost function of the hooks that it passed through, this file's left out."""
    name, trace = "a hook", error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename.startswith(_HOOKS_FOLDER) and code.co_filename != __file__:
            name = code.co_qualname.replace("<locals>.", "")
        trace = trace.tb_next
    return f"{name} failed: {error!r}"
