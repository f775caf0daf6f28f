"""Keeps every failure of a hook away from the training script, and counts the time that hooks take."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])
_here = threading.local()


class Guarded(Protocol):
    """What has guarded methods.

    Attributes:
        dead: True after a failure: nothing more is recorded.
        pid: The process it belongs to; a forked child has none.
        hook_ns: Time that guarded methods took, for somebody to read and to set to 0.
    """

    hook_ns: int

    @property
    def dead(self) -> bool: ...  # noqa: D102 - see the class

    @property
    def pid(self) -> int: ...  # noqa: D102 - see the class

    def abandon(self, reason: str) -> None:
        """End the capture after a failure."""


def say(text: str) -> None:
    """Write one line to standard error, where there is one."""
    with contextlib.suppress(Exception):
        sys.stderr.write(f"perfscope: {text}\n")


def asked(question: Callable[[], Any]) -> Any:
    """The answer of an object of the script's or of a framework's; None where it fails."""
    try:
        return question()
    except Exception:  # noqa: BLE001 - training must not fail because we asked
        return None


def guarded(method: _F) -> _F:
    """Let no exception of a method out, keep a forked child out of it, and count its time."""

    @functools.wraps(method)
    def call(self: Guarded, *args: Any, **kwargs: Any) -> Any:
        began_ns = time.monotonic_ns()
        is_inner = getattr(_here, "is_guarded", False)
        _here.is_guarded = True
        try:
            if self.dead or os.getpid() != self.pid:
                return None
            return method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the hooks' outer edge: training goes on without us
            self.abandon(f"{method.__name__} failed: {error!r}")
            return None
        finally:
            if not is_inner:
                _here.is_guarded = False
                self.hook_ns += time.monotonic_ns() - began_ns

    return call  # type: ignore[return-value]
