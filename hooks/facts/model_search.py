"""Finds the model of a script that no framework wraps: the modules that hold what the optimizer steps.

A parameter does not know its module, so the interpreter's objects are looked through, once, after the first step; that
takes some tens of milliseconds, in the first step, which medians leave out. Only weak references to it are kept.
"""

from __future__ import annotations

import functools
import gc
import threading
import weakref
from typing import TYPE_CHECKING, Any, Protocol

from perfscope.hooks.facts.module_tree import named_parameters
from perfscope.hooks.introspection import COMPILER, is_grad_enabled, subclasses

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    class ModelCall(Protocol):
        """What a call of the model is reported to; it returns what to call at the call's end, if anything."""

        def __call__(
            self, args: tuple[object, ...], kwargs: dict[str, object], *, in_training_mode: bool
        ) -> Callable[[], None] | None:
            """The model is about to run."""

    class ModelOutput(Protocol):
        """What the results of a model's calls are reported to."""

        def __call__(self, output: object, /) -> bool | None:
            """The model returned; False where no further output is wanted."""


#: A module that holds fewer of the optimizer's parameters is not the model.
_SMALLEST_SHARE = 0.5
_COMPILED = "OptimizedModule"
_get_ident = threading.get_ident
#: The threads that run a watched model: a set is quicker than a variable of each thread.
_in_model: set[int] = set()


def find_model(torch: Any, optimizer: Any) -> list[Any]:
    """The modules that hold as many of an optimizer's parameters as any module does, the outermost first.

    A wrapper and the model inside it hold the same ones, so both are there. Empty where no module holds half of them.
    """
    parameters = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    # type() instead of isinstance(), which would make a lazy proxy load its object.
    classes = {torch.nn.Module, *subclasses(torch.nn.Module)}
    modules = [
        candidate for candidate in gc.get_objects() if type(candidate) in classes and "_modules" in vars(candidate)
    ]
    children = {id(child) for module in modules for child in module._modules.values()}
    counts = [(_count(module, parameters), module) for module in modules if id(module) not in children]
    largest, root = max(counts, key=lambda pair: pair[0], default=(0, None))
    if root is None or largest < _SMALLEST_SHARE * len(parameters) or not parameters:
        return []
    chain = [root]
    while True:
        inner = [
            child for child in chain[-1]._modules.values() if child is not None and _count(child, parameters) == largest
        ]
        if len(inner) != 1:
            return chain
        chain += inner


def _count(module: Any, parameters: set[int]) -> int:
    """How many of the parameters, by their ids, a module holds."""
    return sum(id(parameter) in parameters for _, parameter in named_parameters(module))


def report_calls(
    torch: Any, chain: Sequence[Any], on_call: ModelCall, on_output: ModelOutput, is_over: Callable[[], bool]
) -> bool:
    """Report each call of a model, and what it returns while it trains; whether that is possible.

    The classes are wrapped and not the objects, so that a model is pickled, copied and scripted as before. What runs
    in compiled code is left alone: it would have to be compiled again. Where ``is_over`` says that nothing trains the
    model any more, the next one of its class that trains takes its place, as in each fold of a cross-validation.
    """
    outside = [index for index, module in enumerate(chain) if type(module).__name__ == _COMPILED]
    in_place = any(getattr(module, "_compiled_call_impl", None) is not None for module in chain)
    if not outside and not in_place and _has_compiled(torch):
        return False
    watched = chain[: outside[0] + 1] if outside else chain
    references = [weakref.ref(module) for module in watched]
    for owner in {type(module) for module in watched}:
        _wrap_calls(owner, references, on_call, on_output, is_over)
    return True


def _has_compiled(torch: Any) -> bool:
    counters = getattr(getattr(getattr(torch, "_dynamo", None), "utils", None), "counters", None)
    return bool(counters and counters.get("frames", {}).get("total", 0))


class _OwnCall:
    """A class's own ``__call__``, under the name by which one of its parents has one."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.__call__ = function


def _wrap_calls(
    owner: Any,
    references: list[weakref.ref[Any]],
    on_call: ModelCall,
    on_output: ModelOutput,
    is_over: Callable[[], bool],
) -> None:
    original = owner.__call__
    # An inherited call is looked up in each step: while a window is open, marks of modules are put around it.
    base = next(parent for parent in owner.__mro__ if "__call__" in vars(parent))
    current = base if base is not owner else _OwnCall(original)
    is_output_wanted = True

    def is_watched(module: Any) -> bool:
        nonlocal is_output_wanted
        if any(module is watched() for watched in references):
            return True
        if not (module.training and is_grad_enabled() and (references[0]() is None or is_over())):
            return False
        references[:] = [weakref.ref(module)]
        is_output_wanted = True
        return True

    @functools.wraps(original)
    def reporting_call(self: Any, *args: object, **kwargs: object) -> Any:
        nonlocal is_output_wanted
        if COMPILER.is_tracing():
            return original(self, *args, **kwargs)
        thread = _get_ident()
        if thread in _in_model or (references[0]() is not self and not is_watched(self)):
            return current.__call__(self, *args, **kwargs)
        on_end = on_call(args, kwargs, in_training_mode=self.training)
        _in_model.add(thread)
        try:
            output = current.__call__(self, *args, **kwargs)
        finally:
            _in_model.discard(thread)
            if on_end is not None:
                on_end()
        if is_output_wanted and self.training:
            is_output_wanted = on_output(output) is not False
        return output

    owner.__call__ = reporting_call
