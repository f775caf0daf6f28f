"""The model that is trained: which module it is, what type it computes in, and whether it is recomputed."""

from __future__ import annotations

import sys
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from perfscope.hooks.facts.model import describe_model
from perfscope.hooks.facts.model_search import find_model, report_calls
from perfscope.hooks.facts.module_tree import named_modules
from perfscope.hooks.facts.precision import PrecisionWatch
from perfscope.wire.model import IN_USE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfscope.hooks.facts.model_search import ModelCall, ModelOutput
    from perfscope.wire.model import ModelRecord


#: The stage of ZeRO that FSDP does.
_FULLY_SHARDED = 3
_SHARDED_BY = {"FullyShardedDataParallel", "FSDPModule"}


class ModelWatch:
    """The model of one process; nothing of it is kept alive.

    Attributes:
        uncounted: Why the calls of the model are not reported; empty where they are.
        precision: What is seen of the type that it computes in.
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
        """A framework trains a module, or several parts of a model on this rank; only the first call counts."""
        if not self._parts:
            self._parts = tuple(weakref.ref(part) for part in parts)
            self._config = config
            self._zero_stage = zero_stage

    def add_part(self, part: Any) -> None:
        """This rank holds one more part of the model."""
        self._parts = (*self._parts, weakref.ref(part))

    def on_optimizer_step(self, optimizer: object) -> None:
        """An optimizer steps; the first one's parameters are the model's where no framework names the model.

        Where it is gone, another one goes on in its place.
        """
        if self._optimizer is None or self._optimizer() is None:
            self._optimizer = weakref.ref(optimizer)

    @property
    def optimizer(self) -> object:
        """The optimizer that steps; None where none did, or where it is gone."""
        return None if self._optimizer is None else self._optimizer()

    def trained(self) -> tuple[list[object], list[object]]:
        """The parts of the model and the optimizers, as far as they are known and alive."""
        parts = [part for reference in self._parts if (part := reference()) is not None]
        return parts, [] if self.optimizer is None else [self.optimizer]

    def on_recompute(self) -> None:
        """A part of the model runs so that its activations are recomputed."""
        self._is_recomputed = True

    def record(self, on_call: ModelCall, on_output: ModelOutput) -> ModelRecord | None:
        """Describe the model; if no framework named it, search for it and report its calls from then on."""
        if not self._parts:
            self._search(on_call, on_output)
        parts = [part for reference in self._parts if (part := reference()) is not None]
        if not parts:
            return None
        torch = sys.modules["torch"]
        described = describe_model(*parts, config=self._config)
        precision = self.precision.record(torch, tuple(parts))
        optimizer = self._optimizer() if self._optimizer else None
        return replace(
            described,
            compute_dtype=precision.autocast,
            precision=precision,
            checkpointing=described.checkpointing or (IN_USE if self._is_recomputed else None),
            zero_stage=_FULLY_SHARDED if self._zero_stage is None and _is_sharded(parts) else self._zero_stage,
            optimizer=None if optimizer is None else type(optimizer).__name__,
        )

    def _search(self, on_call: ModelCall, on_output: ModelOutput) -> None:
        optimizer = self._optimizer() if self._optimizer else None
        chain = find_model(sys.modules["torch"], optimizer) if optimizer is not None else []
        if not chain:
            return
        self._parts = (weakref.ref(chain[0]),)
        if not report_calls(sys.modules["torch"], chain, on_call, on_output, self._is_optimizer_gone):
            self.uncounted = "tokens are not counted: the script compiles the code around the model"

    def _is_optimizer_gone(self) -> bool:
        return self._optimizer is None or self._optimizer() is None


def _is_sharded(parts: Sequence[Any]) -> bool:
    """Whether PyTorch's FSDP, of either kind, shards a part of the model."""
    classes = {type(module) for part in parts for _, module in named_modules(part)}
    return any(base.__name__ in _SHARDED_BY for module_class in classes for base in module_class.__mro__)
