"""What the peak of a run's memory consists of, in the categories of a plan."""

from __future__ import annotations

from collections.abc import Mapping

from perfscope.analyzers.memory import analyze
from perfscope.analyzers.memory.categories import Category
from perfscope.errors import PerfscopeError
from perfscope.tables.run import Run

#: A plan's activations hold what passes allocate for themselves, too.
_PARTS = {
    "weights": (Category.WEIGHTS,),
    "gradients": (Category.GRADIENTS,),
    "optimizer": (Category.OPTIMIZER,),
    "activations": (Category.ACTIVATIONS, Category.WORKSPACE),
    "gathered": (Category.COMMUNICATION,),
}


def measure_parts(run: Run) -> Mapping[str, int]:
    """Bytes of each part on the fullest rank; empty without a history of its allocator."""
    try:
        fullest = analyze(run).fullest
    except PerfscopeError:
        return {}
    return {
        name: sum(fullest.category_bytes(category) for category in categories) for name, categories in _PARTS.items()
    }
