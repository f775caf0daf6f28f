"""The model that is trained; where no framework names it, the modules that hold what the optimizer steps.

A parameter does not know its module, so the interpreter's objects are searched once, after the first step. The search
takes some tens of milliseconds of the first step, which medians leave out. Only weak references to the model are kept.
"""

from __future__ import annotations

import functools
import gc
import sys
import threading
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from perfscope.hooks import introspection
from perfscope.hooks.facts.model import describe_model
from perfscope.hooks.facts.precision import PrecisionWatch
from perfscope.hooks.introspection import is_grad_enabled, named_modules, named_parameters, subclasses
from perfscope.wire.model import IN_USE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perfscope.wire.model import ModelRecord

    #: Takes the arguments of a call and ``in_training_mode``; returns what to call at the call's end, if anything.
    ModelCall = Callable[..., Callable[[], None] | None]
    #: Takes what a call returned; False where no further output is wanted.
    ModelOutput = Callable[[object], bool | None]


#: A module that holds fewer of the optimizer's parameters is not the model.
_SMALLEST_SHARE = 0.5
_COMPILED = "OptimizedModule"
#: The stage of ZeRO that FSDP does.
_FULLY_SHARDED = 3
_SHARDED_BY = {"FullyShardedDataParallel", "FSDPModule"}
#: The threads that run a watched model: a set is quicker than a variable of each thread.
in_model: set[int] = set()
#: By the numbers that wrappers have. Libraries pickle classes of a script by value, with all that a wrapper refers to:
#: it has its number, and reaches the rest by this module, which is pickled by its name.
watched_classes: dict[int, WatchedCalls] = {}
here: Any = sys.modules[__name__]


def find_model(torch: Any, optimizer: Any) -> list[Any]:
    """The modules that hold the most of an optimizer's parameters, wrappers first; empty where none holds half."""
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
    return sum(id(parameter) in parameters for _, parameter in named_parameters(module))


def report_calls(
    torch: Any,
    chain: Sequence[Any],
    on_call: ModelCall,
    on_output: ModelOutput,
    is_over: Callable[[], bool] = lambda: False,
) -> bool:
    """Report each call of a model, and what it returns while it trains; whether that is possible.

    The classes are wrapped and not the objects, so that a model is pickled, copied and scripted as before. What runs
    in compiled code is left alone: it would have to be compiled again. A model is over where it is gone, or where
    ``is_over`` says that nothing trains it any more. Then the next one of its class that trains takes its place, as
    in a cross-validation.
    """
    outside = [index for index, module in enumerate(chain) if type(module).__name__ == _COMPILED]
    in_place = any(getattr(module, "_compiled_call_impl", None) is not None for module in chain)
    if not outside and not in_place and _has_compiled(torch):
        return False
    watched = chain[: outside[0] + 1] if outside else chain
    references = [weakref.ref(module) for module in watched]
    for owner in {type(module) for module in watched}:
        _wrap_calls(owner, WatchedCalls(owner, references, on_call, on_output, is_over))
    return True


def _has_compiled(torch: Any) -> bool:
    counters = getattr(getattr(getattr(torch, "_dynamo", None), "utils", None), "counters", None)
    return bool(counters and counters.get("frames", {}).get("total", 0))


class WatchedCalls:
    """The calls of a class of the model.

    Attributes:
        original: Its ``__call__`` before it was wrapped.
        call: The same, where it is the class's own; None where the class inherits it from ``base``. It is
            then looked up in each step, because marks of modules are put around it while a window is open.
    """

    def __init__(
        self,
        owner: Any,
        references: list[weakref.ref[Any]],
        on_call: ModelCall,
        on_output: ModelOutput,
        is_over: Callable[[], bool],
    ) -> None:
        self.base = next(parent for parent in owner.__mro__ if "__call__" in vars(parent))
        self.original: Callable[..., Any] = owner.__call__
        self.call = self.original if self.base is owner else None
        self.references = references
        self.on_call, self.on_output = on_call, on_output
        self.is_output_wanted = True
        self._is_over = is_over

    def is_watched(self, module: Any) -> bool:
        """Whether a module is the one that is trained, or takes its place now."""
        if any(module is watched() for watched in self.references):
            return True
        if not (module.training and is_grad_enabled() and (self.references[0]() is None or self._is_over())):
            return False
        self.references[:] = [weakref.ref(module)]
        self.is_output_wanted = True
        return True


def _wrap_calls(owner: Any, watched: WatchedCalls) -> None:
    original, number = watched.original, len(watched_classes)
    watched_classes[number] = watched

    @functools.wraps(original)
    def reporting_call(self: Any, *args: object, **kwargs: object) -> Any:
        if introspection.COMPILER.is_tracing():
            return original(self, *args, **kwargs)
        calls = here.watched_classes.get(number)
        if calls is None or calls.original is not original:  # in another process nobody watches the class
            return original(self, *args, **kwargs)
        call = calls.call or calls.base.__call__
        thread = threading.get_ident()
        if thread in here.in_model or (calls.references[0]() is not self and not calls.is_watched(self)):
            return call(self, *args, **kwargs)
        on_end = calls.on_call(args, kwargs, in_training_mode=self.training)
        here.in_model.add(thread)
        try:
            output = call(self, *args, **kwargs)
        finally:
            here.in_model.discard(thread)
            if on_end is not None:
                on_end()
        if calls.is_output_wanted and self.training:
            calls.is_output_wanted = calls.on_output(output) is not False
        return output

    owner.__call__ = reporting_call


class ModelWatch:
    """The model of one process; nothing of it is kept alive.

    ``uncounted`` says why its calls are not reported; it is empty where they are.
    """

    def __init__(self) -> None:
        self.uncounted = ""
        self.precision = PrecisionWatch()
        self._parts: tuple[weakref.ref[Any], ...] = ()
        self._config: dict[str, Any] = {}
        self._optimizer: weakref.ref[object] | None = None
        self._is_recomputed = False
        self._zero_stage: int | None = None

    def set_parts(self, parts: Sequence[Any], config: dict[str, Any], zero_stage: int | None) -> None:
        """See ``Capture.set_model``."""
        if not self._parts:
            self._parts = tuple(weakref.ref(part) for part in parts)
            self._config = config
            self._zero_stage = zero_stage

    def add_part(self, part: Any) -> None:
        """This rank holds one more part of the model."""
        self._parts = (*self._parts, weakref.ref(part))

    def on_optimizer_step(self, optimizer: object) -> None:
        """An optimizer steps; the first one's parameters are the model's. Where it is gone, another one follows."""
        if self._optimizer is None or self._optimizer() is None:
            self._optimizer = weakref.ref(optimizer)

    @property
    def optimizer(self) -> object:
        """The optimizer that steps, where it is not gone."""
        return None if self._optimizer is None else self._optimizer()

    def trained(self) -> tuple[list[object], list[object]]:
        """The parts of the model and the optimizers, as far as they are known and alive."""
        return self._living_parts(), [] if self.optimizer is None else [self.optimizer]

    def _living_parts(self) -> list[Any]:
        return [part for reference in self._parts if (part := reference()) is not None]

    def on_recompute(self) -> None:
        """A part of the model runs so that its activations are recomputed."""
        self._is_recomputed = True

    def record(self, on_call: ModelCall, on_output: ModelOutput) -> ModelRecord | None:
        """Describe the model; if no framework named it, search for it and report its calls from then on."""
        if not self._parts:
            self._search(on_call, on_output)
        parts = self._living_parts()
        if not parts:
            return None
        described = describe_model(*parts, config=self._config)
        precision = self.precision.record(sys.modules["torch"], tuple(parts))
        return replace(
            described,
            compute_dtype=precision.autocast,
            precision=precision,
            checkpointing=described.checkpointing or (IN_USE if self._is_recomputed else None),
            zero_stage=_FULLY_SHARDED if self._zero_stage is None and _is_sharded(parts) else self._zero_stage,
        )

    def _search(self, on_call: ModelCall, on_output: ModelOutput) -> None:
        optimizer = self.optimizer
        chain = [] if optimizer is None else find_model(sys.modules["torch"], optimizer)
        if not chain:
            return
        self._parts = (weakref.ref(chain[0]),)
        trains = weakref.ref(optimizer)
        if not report_calls(sys.modules["torch"], chain, on_call, on_output, lambda: trains() is None):
            self.uncounted = "tokens are not counted: the script compiles the code around the model"


def _is_sharded(parts: Sequence[Any]) -> bool:
    classes = {type(module) for part in parts for _, module in named_modules(part)}
    return any(base.__name__ in _SHARDED_BY for module_class in classes for base in module_class.__mro__)
