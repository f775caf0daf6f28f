"""Finds the model of a script that no framework wraps: the modules that hold what the optimizer steps.

A parameter does not know its module, so the interpreter's objects are looked through, once, after the first step; that
takes some tens of milliseconds, in a step that no median counts. Nothing is kept but weak references.
"""

from __future__ import annotations

import functools
import gc
import threading
import weakref
from typing import TYPE_CHECKING, Any

from perfscope.hooks.frameworks.nested_optimizers import compiling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Call = Callable[[tuple[Any, ...], dict[str, Any]], None]

_MOST = 0.5
_COMPILED = "OptimizedModule"
_inside_model = threading.local()


def find_model(torch: Any, optimizer: Any) -> list[Any]:
    """The modules that hold all that the best of them holds of an optimizer's parameters, the outermost first.

    A wrapper and the model inside it hold the same, so both are there. Empty where no module holds most of them.
    """
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    # The class is asked, not the object: a lazy proxy would wake up.
    classes = set(_subclasses(torch.nn.Module))
    modules = [each for each in gc.get_objects() if type(each) in classes and "_modules" in vars(each)]
    children = {id(child) for module in modules for child in module._modules.values()}
    roots = [module for module in modules if id(module) not in children]
    held_by = [(_held(root, held), root) for root in roots]
    most, root = max(held_by, key=lambda pair: pair[0], default=(0, None))
    if root is None or most < _MOST * len(held) or not held:
        return []
    chain = [root]
    while True:
        inner = [child for child in chain[-1]._modules.values() if child is not None and _held(child, held) == most]
        if len(inner) != 1:
            return chain
        chain += inner


def _subclasses(parent: Any) -> Iterator[Any]:
    yield parent
    for child in parent.__subclasses__():
        yield from _subclasses(child)


def _held(module: Any, held: set[int]) -> int:
    return sum(id(parameter) in held for parameter in module.parameters())


def report_calls(torch: Any, chain: Sequence[Any], call: Call) -> bool:
    """Report each call of a model while it trains; whether that is possible.

    The classes are wrapped and not the objects, so that a model is pickled, copied and scripted as before. What runs
    in compiled code is left alone: it would have to be compiled again.
    """
    outside = [index for index, module in enumerate(chain) if type(module).__name__ == _COMPILED]
    in_place = any(getattr(module, "_compiled_call_impl", None) is not None for module in chain)
    if not outside and not in_place and _has_compiled(torch):
        return False
    watched = chain[: outside[0] + 1] if outside else chain
    references = [weakref.ref(module) for module in watched]
    for owner in {type(module) for module in watched}:
        _wrap_calls(owner, references, call)
    return True


def _has_compiled(torch: Any) -> bool:
    counters = getattr(getattr(getattr(torch, "_dynamo", None), "utils", None), "counters", None)
    return bool(counters and counters.get("frames", {}).get("total", 0))


def _wrap_calls(owner: Any, references: Sequence[weakref.ref[Any]], call: Call) -> None:
    original = owner.__call__

    @functools.wraps(original)
    def reporting_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if compiling() or getattr(_inside_model, "yes", False) or not any(self is known() for known in references):
            return original(self, *args, **kwargs)
        if self.training:
            call(args, kwargs)
        _inside_model.yes = True
        try:
            return original(self, *args, **kwargs)
        finally:
            _inside_model.yes = False

    owner.__call__ = reporting_call
