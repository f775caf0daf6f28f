"""Signs of the data type that a model multiplies in, which the type of its parameters does not tell.

Autocast, FSDP's mixed precision and fp8 layers cast parameters before they are multiplied. What a forward pass
multiplied is in the graph of its output: the operators that multiply stand in it with the types of their results. The
graph is only looked at, and saved tensors are left alone: to unpack one could compute it again.
"""

from __future__ import annotations

import math
import re
import sys
from collections import deque
from typing import Any

from perfscope.hooks.guard import value_or_none
from perfscope.hooks.introspection import FIRST_LOOKS, named_modules
from perfscope.hooks.step import DEEPEST, elements
from perfscope.wire.model import FP4_LAYERS, PrecisionRecord

DTYPE_NAMES = {
    "torch.bfloat16": "bf16",
    "torch.float16": "fp16",
    "torch.float32": "fp32",
    "torch.float64": "fp64",
    "torch.float8_e4m3fn": "fp8",
    "torch.float8_e5m2": "fp8",
}
#: Nodes of one graph that are looked at, at most, which takes some milliseconds in one step.
_MOST_NODES = 2000
#: Operators that multiply, by the names of their nodes; modules of Megatron and Transformer Engine have nodes as well.
_PRODUCT = re.compile(
    r"(?:Add|Badd|B)?b?mmBackward|ScaledDotProduct\w*Backward|ConvolutionBackward|_?Scaled_?MmBackward|"
    r"_?Grouped_?MmBackward|Linear\w*Backward|_(?:LayerNorm|Grouped)?(?:Linear|MLP)Backward|FlashAttn\w*Backward",
    re.IGNORECASE,
)
_TRANSFORMER_ENGINE = "transformer_engine"
_FP8_LINEAR = ("Float8Linear", "FP8Linear")


class PrecisionWatch:
    """What the first forward passes of a process show.

    Attributes:
        engine: The type that a framework's engine is configured to compute in.
        has_entered: Whether further forward passes would show nothing new of autocast.
    """

    def __init__(self) -> None:
        self._autocast: str | None = None
        self.engine: str | None = None
        self._products: dict[str, int] = {}
        self._entries = 0
        self.has_entered = False
        self._outputs = 0

    @property
    def is_settled(self) -> bool:
        """Whether an output showed in what its model multiplies, or as many as are looked at did not."""
        return bool(self._products) or self._outputs >= FIRST_LOOKS

    def on_forward(self) -> bool:
        """The model is about to run; whether that shows autocast."""
        if self._autocast is not None or self._entries >= FIRST_LOOKS:
            self.has_entered = True
            return False
        self._entries += 1
        self._autocast = autocast_dtype(sys.modules["torch"])
        return self._autocast is not None

    def on_output(self, output: object) -> bool:
        """The model returned; True where its output showed in what it multiplies."""
        if self.is_settled:
            return False
        self._outputs += 1
        self._products = value_or_none(lambda: find_products(output)) or {}
        return bool(self._products)

    def record(self, torch: Any, parts: tuple[Any, ...]) -> PrecisionRecord:
        """What was seen so far, and how the model's parts are configured."""
        return PrecisionRecord(
            products=self._products,
            autocast=self._autocast,
            policy=value_or_none(lambda: _fsdp_dtype(parts)),
            engine=self.engine,
            fp8=value_or_none(lambda: _fp8_library(parts)),
            float32=value_or_none(lambda: float32_products(torch)),
        )


def dtype_name(dtype: object) -> str | None:
    """The short name of a data type; None for None."""
    return None if dtype is None else DTYPE_NAMES.get(str(dtype), str(dtype))


def autocast_dtype(torch: Any) -> str | None:
    """The type that autocast is computing in right now; None where it is off or unknown."""
    for device in ("cuda", "cpu"):
        try:
            if torch.is_autocast_enabled(device):
                return dtype_name(torch.get_autocast_dtype(device))
        except (AttributeError, RuntimeError, TypeError):
            return None
    return None


def float32_products(torch: Any) -> str | None:
    """``tf32`` or ``fp32``: what products of fp32 operands are multiplied in on a GPU; None where unknown.

    Since torch 2.9 there are two interfaces. The older one raises once the newer one was used, and not the reverse.
    """
    matmul = torch.backends.cuda.matmul
    for precision in (
        value_or_none(lambda: matmul.fp32_precision),
        value_or_none(lambda: torch.backends.fp32_precision),
    ):
        if precision in ("tf32", "ieee"):
            return "tf32" if precision == "tf32" else "fp32"
    precision = value_or_none(torch.get_float32_matmul_precision)
    return None if precision is None else "fp32" if precision == "highest" else "tf32"


def find_products(output: object) -> dict[str, int]:
    """The elements that the products behind an output computed, by data type; empty where the graph shows none."""
    with sys.modules["torch"]._C.DisableTorchFunction():  # a class of tensors may have a function of its own
        root = _first_graph(output)
    waiting = deque([root] if root is not None else [])
    # The nodes themselves are kept: the interpreter gives the id of one that is dropped to another.
    seen = {id(root): root}
    elements: dict[str, int] = {}
    while waiting and len(seen) < _MOST_NODES:
        node = waiting.popleft()
        if _PRODUCT.match(node.name()):
            (result, *_) = node._input_metadata
            name = dtype_name(result.dtype) or ""
            elements[name] = elements.get(name, 0) + math.prod(int(size) for size in result.shape)
        for following, _ in node.next_functions:
            if following is not None and id(following) not in seen:
                seen[id(following)] = following
                waiting.append(following)
    return elements


def _first_graph(output: object, depth: int = DEEPEST) -> Any:
    """The graph of the first tensor that has one, also inside of plain objects."""
    if issubclass(type(output), sys.modules["torch"].Tensor):
        return output.grad_fn  # type: ignore[attr-defined]
    if depth == 0:
        return None
    values: Any = list(elements(output))
    if not values and type(output).__dictoffset__:
        values = dict.values(object.__getattribute__(output, "__dict__"))
    return next((graph for value in values if (graph := _first_graph(value, depth - 1)) is not None), None)


def _fsdp_dtype(parts: tuple[Any, ...]) -> str | None:
    """The type that FSDP's mixed precision casts the parameters of the most modules to."""
    counts: dict[str, int] = {}
    for module in (module for part in parts for _, module in named_modules(part)):
        policy = vars(module).get("mixed_precision")
        if policy is None and any(base.__name__ == "FSDPModule" for base in type(module).__mro__):
            policy = getattr(module._get_fsdp_state(), "_mp_policy", None)
        dtype = dtype_name(getattr(policy, "param_dtype", None))
        if dtype is not None:
            counts[dtype] = counts.get(dtype, 0) + 1
    return max(counts, key=lambda dtype: counts[dtype]) if counts else None


def _fp8_library(parts: tuple[Any, ...]) -> str | None:
    for module in (module for part in parts for _, module in named_modules(part)):
        owner = type(module)
        if owner.__module__.startswith(_TRANSFORMER_ENGINE) and vars(module).get("fp8") is True:
            recipe = type((vars(module).get("fp8_meta") or {}).get("recipe")).__name__
            return f"Transformer Engine{FP4_LAYERS}" if recipe.startswith("NVFP4") else "Transformer Engine"
        if owner.__name__ in _FP8_LINEAR:
            return owner.__module__.partition(".")[0]
    return None
