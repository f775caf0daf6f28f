"""Puts hooks around the functions of a framework.

A hook is a generator function that takes the arguments of the function that it is put around. The code before its
``yield`` runs before each call, and the code after it runs after the call, whose result is the value of the ``yield``.
Where the call raises, the generator is closed. Both parts run inside the guard: an error in them ends the capture, and
never the training. The function itself is always called, with its own arguments, and its result or exception passed on.

A generator takes ten microseconds in a step whose code is in no cache of the processor. What every training calls is
therefore wrapped by hand where it is patched: nothing in such a wrapper can fail but the call of a guarded method.
"""

from __future__ import annotations

import functools
import sys
import threading
from typing import TYPE_CHECKING, Any

from perfscope.hooks.introspection import COMPILER
from perfscope.hooks.open_window import UNTIMED

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping
    from types import ModuleType
    from typing import Concatenate, TypeAlias

    from perfscope.hooks.capture import Capture
    from perfscope.hooks.timers.passes import TimedPass
    from perfscope.hooks.timers.saves import SaveTimer

    RunningHook: TypeAlias = Generator[None, Any, Any]
    Hook: TypeAlias = Callable[..., RunningHook]
    SaveHook: TypeAlias = Callable[Concatenate[SaveTimer, ...], RunningHook]
    #: Begins a pass from the arguments of the function that runs it; None where it runs none.
    PassBegin: TypeAlias = Callable[..., TimedPass | None]
    #: For each watched module the functions that patch it, by the feature that is lost where one of them fails.
    Patches: TypeAlias = Mapping[str, Mapping[str, Callable[[ModuleType, Capture], None]]]


_get_ident = threading.get_ident
#: The threads that run the forward of a wrapped model: a set is quicker than a variable of each thread.
_in_forward: set[int] = set()


def wrap_functions(owner: Any, capture: Capture, hooks: Mapping[str, Hook]) -> None:
    """Put hooks around functions of a module or class, by their names: around all of them or around none.

    It and what follows raise AttributeError: this version of the framework lacks one of the functions.
    """
    originals = {name: getattr(owner, name) for name in hooks}
    for name, hook in hooks.items():
        _replace(owner, name, _hooked(originals[name], hook, lambda: capture))


def wrap_saves(owner: Any, capture: Capture, hooks: Mapping[str, SaveHook]) -> None:
    """Put hooks around functions that save checkpoints; they are passed the timer of saves ahead of the arguments.

    A process that only converts checkpoints does not train: where training has not begun, hooks do not run.
    """
    originals = {name: getattr(owner, name) for name in hooks}
    for name, hook in hooks.items():

        def timed(*args: object, hook: SaveHook = hook, **kwargs: object) -> RunningHook:
            return hook(capture.save_timer, *args, **kwargs)

        _replace(owner, name, _hooked(originals[name], timed, lambda: capture.save_timer))
        _replace_in_packages(owner, name, originals[name])


def _replace_in_packages(module: Any, name: str, original: object) -> None:
    """Packages around a module may have imported the function before it was wrapped."""
    package = getattr(module, "__name__", "")
    while "." in package:
        package = package.rpartition(".")[0]
        loaded = sys.modules.get(package)
        if loaded is not None and vars(loaded).get(name) is original:
            setattr(loaded, name, getattr(module, name))


def report_recomputation(owner: Any, name: str, capture: Capture) -> None:
    """Report a recomputation of activations ahead of the first call of a function."""
    original = getattr(owner, name)
    is_reported = False

    @functools.wraps(original)
    def call(*args: object, **kwargs: object) -> Any:
        nonlocal is_reported
        if not is_reported:
            is_reported = True
            capture.on_recompute()
        return original(*args, **kwargs)

    _replace(owner, name, call)


def report_first_outputs(capture: Capture) -> Callable[[object], None]:
    """A function that passes the outputs of a model that trains on to the capture, for as long as it wants them."""
    is_wanted = True

    def report(output: object) -> None:
        nonlocal is_wanted
        if is_wanted:
            is_wanted = capture.on_model_output(output) is not False

    return report


def count_forwards(owner: Any, capture: Capture, is_counted: Callable[[Any], bool] | None = None) -> None:
    """Report the outermost forward passes of modules that wrap a model, each of which is one micro-batch.

    torch.compile must find nothing in it but the original call.
    """
    original = owner.forward
    report_output = report_first_outputs(capture)

    @functools.wraps(original)
    def forward(self: Any, *args: object, **kwargs: object) -> Any:
        if COMPILER.is_tracing():
            return original(self, *args, **kwargs)
        thread = _get_ident()
        if thread in _in_forward or not (is_counted is None or is_counted(self)):
            return original(self, *args, **kwargs)
        on_end = capture.on_forward(args, kwargs, in_training_mode=getattr(self, "training", True), model=self)
        _in_forward.add(thread)
        try:
            output = original(self, *args, **kwargs)
        finally:
            _in_forward.discard(thread)
            if on_end is not None:
                on_end()
        report_output(output)
        return output

    owner.forward = forward


def time_calls(owner: Any, capture: Capture, kind: str, *names: str) -> None:
    """Time functions that validate or generate in one call; ``kind`` is that of the span."""

    def call(*_args: object, **_kwargs: object) -> RunningHook:
        is_timed = capture.activities.begin_call(kind)
        try:
            yield
        finally:
            if is_timed:
                capture.activities.end_call()

    wrap_functions(owner, capture, dict.fromkeys(names, call))


def _hooked(
    original: Callable[..., Any], hook: Hook, find_guard: Callable[[], Capture | SaveTimer | None]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: object, **kwargs: object) -> Any:
        guard = find_guard()
        if guard is None:
            return original(*args, **kwargs)
        running = guard.run_guarded(_start, hook, args, kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException:
            if running is not None:
                guard.run_guarded(running.close)
            raise
        if running is not None:
            guard.run_guarded(_finish, running, result)
        return result

    return call


def _start(hook: Hook, args: tuple[object, ...], kwargs: dict[str, object]) -> RunningHook:
    running = hook(*args, **kwargs)
    next(running, None)
    return running


def _finish(running: RunningHook, result: object) -> None:
    try:
        running.send(result)
    except StopIteration:  # contextlib.suppress would take as long as all the rest
        return


def _replace(owner: Any, name: str, function: Callable[..., Any]) -> None:
    is_static = isinstance(vars(owner).get(name), staticmethod)
    setattr(owner, name, staticmethod(function) if is_static else function)


def time_passes(
    original: Callable[..., Any],
    capture: Capture,
    begin: PassBegin,
    *,
    is_forward: bool,
    on_result: Callable[[Any], None] | None = None,
) -> Callable[..., Any]:
    """A function with a pass of a micro-batch around each call; written by hand, because a step makes many."""

    @functools.wraps(original)
    def call(*args: object, **kwargs: object) -> Any:
        if UNTIMED.rest:
            UNTIMED.forwards += is_forward
            return original(*args, **kwargs)
        timed_pass = capture.run_guarded(begin, *args, **kwargs)
        if timed_pass is None:
            return original(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
        finally:
            capture.on_pass_end(timed_pass)
        if on_result is not None:
            capture.run_guarded(on_result, result)
        return result

    return call


def argument(function: Any, name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
    """One argument of a call by its name, wherever a version of the framework puts it; None where it is absent."""
    if name in kwargs:
        return kwargs[name]
    code = getattr(getattr(function, "__wrapped__", function), "__code__", None)
    names = () if code is None else code.co_varnames[: code.co_argcount]
    position = names.index(name) if name in names else len(args)
    return args[position] if position < len(args) else None


def whole_number(value: object) -> int | None:
    """A count that a framework states; None where this version states something else."""
    return value if isinstance(value, int) else None
