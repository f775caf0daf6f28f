"""What hooks look up in the running interpreter; they never import torch themselves."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: So many first batches, outputs and steps are looked at, to learn what a training is.
FIRST_LOOKS = 4


class _Thread(threading.local):
    def __init__(self) -> None:
        self.token = object()


#: ``THREAD.token`` is another object in each thread; the number of a thread that has ended may be given again.
THREAD = _Thread()


class Tracers:
    """What torch may run a model for besides training, where a hook must look at no tensor: each look is recorded.

    That is ``torch.jit.trace``, ``torch.export``, ``make_fx``, a mode that sees each operator, and a transformation of
    ``torch.func``. A mode that sees each function is none: whole trainings run in that of ``torch.set_default_device``.
    """

    def __init__(self) -> None:
        self._compiler: object = None
        self._tracing_state: Callable[[], object] = lambda: None
        self._transforms: Callable[[], object] = lambda: None
        self._dispatch_modes: Callable[[], int] = int

    def use_torch(self) -> None:
        """Ask torch from now on, where it has the functions."""
        torch: Any = sys.modules["torch"]
        library = getattr(torch, "_C", None)
        self._compiler = getattr(torch, "compiler", None)
        self._tracing_state = getattr(library, "_get_tracing_state", self._tracing_state)
        self._dispatch_modes = getattr(library, "_len_torch_dispatch_stack", self._dispatch_modes)
        functorch = getattr(library, "_functorch", None)
        self._transforms = getattr(functorch, "peek_interpreter_stack", self._transforms)

    def are_active(self) -> bool:
        """Whether one of them runs this call."""
        if self._tracing_state() is not None or self._dispatch_modes() or self._transforms() is not None:
            return True
        return getattr(self._compiler, "_is_compiling_flag", False)


class Compiler:
    """``is_tracing``: whether torch.compile traces this call: then a wrapper must leave nothing in the graph."""

    def __init__(self) -> None:
        self.is_tracing: Callable[[], bool] = _is_compiling

    def use_torch(self) -> None:
        """Ask torch's own function from now on, where it has one: everything else takes longer than a whole hook."""
        compiler = getattr(sys.modules["torch"], "compiler", None)
        self.is_tracing = getattr(compiler, "is_dynamo_compiling", self.is_tracing)


def _is_compiling() -> bool:
    is_traced = getattr(getattr(sys.modules["torch"], "compiler", None), "is_compiling", None)
    return is_traced is not None and bool(is_traced())


TRACERS = Tracers()
COMPILER = Compiler()


def is_in_backward() -> bool:
    """Whether this call is made inside of a backward pass, as by an optimizer that steps in a hook of a gradient."""
    library = getattr(sys.modules.get("torch"), "_C", None)
    find_task = getattr(library, "_current_graph_task_id", None)
    return find_task is not None and find_task() != -1


def is_grad_enabled() -> bool:
    """Whether torch records gradients, as in training and not in an evaluation."""
    is_enabled: bool = sys.modules["torch"].is_grad_enabled()
    return is_enabled


def subclasses(parent: Any) -> Iterator[Any]:
    """Every class that is derived from a class, directly or not."""
    for child in parent.__subclasses__():
        yield child
        yield from subclasses(child)


def named_modules(root: Any) -> Iterator[tuple[str, Any]]:
    """Each module inside a module, itself included, once, with the first of its names."""
    seen: set[int] = set()
    waiting = [("", root)]
    while waiting:
        name, module = waiting.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield name, module
        children = [(child_name, child) for child_name, child in module._modules.items() if child is not None]
        waiting += [(f"{name}.{child_name}" if name else child_name, child) for child_name, child in reversed(children)]


def named_parameters(root: Any) -> Iterator[tuple[str, Any]]:
    """Each parameter of a module once, with the first of its names."""
    seen: set[int] = set()
    for prefix, module in named_modules(root):
        for name, parameter in module._parameters.items():
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                yield f"{prefix}.{name}" if prefix else name, parameter
