"""How training is set up: options of data loaders, DDP, optimizers and DeepSpeed, and how much of a batch is padding.

Only attributes are read. Attention masks are counted on the host, in the first batches, before they are copied.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping
from typing import Any

from perfscope.hooks.introspection import named_parameters
from perfscope.hooks.step import DIMENSIONS_OF_IDS, entry
from perfscope.wire.setup import DdpRecord, LoaderRecord, OptimizerRecord, PaddingRecord, SetupRecord

_FRAMEWORKS = {
    "deepspeed": "deepspeed.runtime.engine",
    "megatron": "megatron.core",
    "transformers": "transformers.trainer",
    "lightning": "lightning.pytorch.trainer.trainer",
    "accelerate": "accelerate.accelerator",
    "torchtitan": "torchtitan",
}
#: Masks that say where a batch holds padding, and whether they are true there.
_MASKS = {"attention_mask": False, "src_key_padding_mask": True, "padding_mask": True}
_PLAIN = (bool, int, float, str)


class SetupWatch:
    """How the model of this process is trained."""

    def __init__(self) -> None:
        self._loaders: dict[tuple[int, bool, int | None, bool], int] = {}
        self._ddp: DdpRecord | None = None
        self._engine: dict[str, object] = {}
        self._masks = self._positions = self._padded = 0
        self._written: SetupRecord | None = None

    def add_loader(self, loader: Any) -> None:
        """An iteration over a data loader begins."""
        options = vars(loader)  # a property of the script's own class is not called
        workers = int(options.get("num_workers") or 0)
        prefetch = options.get("prefetch_factor") if workers else None
        key = (
            workers,
            bool(options.get("pin_memory")),
            prefetch if isinstance(prefetch, int) else None,
            bool(options.get("persistent_workers")),
        )
        self._loaders[key] = self._loaders.get(key, 0) + 1

    def set_ddp(self, wrapper: Any) -> None:
        """A model is replicated by DistributedDataParallel."""
        parameters = [parameter for _, parameter in named_parameters(wrapper.module) if parameter.requires_grad]
        bucket_bytes = getattr(wrapper, "bucket_bytes_cap", None)
        self._ddp = DdpRecord(
            find_unused_parameters=bool(getattr(wrapper, "find_unused_parameters", False)),
            bucket_bytes=bucket_bytes if isinstance(bucket_bytes, int) else None,
            gradient_bytes=sum(parameter.numel() * parameter.element_size() for parameter in parameters),
            tensors=len(parameters),
        )

    def set_engine(self, options: Mapping[str, object]) -> None:
        """An engine of DeepSpeed was built with these options; those with plain values are kept."""
        self._engine = {name: value for name, value in options.items() if isinstance(value, _PLAIN)}

    def add_batch(self, batch: object) -> None:
        """A data loader returned one of its first batches."""
        tensor_class = sys.modules["torch"].Tensor
        for name, is_true_at_padding in _MASKS.items():
            mask = entry(batch, name)
            if type(mask) is not tensor_class or mask.ndim != DIMENSIONS_OF_IDS or mask.device.type != "cpu":
                continue
            values = mask.numpy()  # numpy's sum is no operator of torch, which a trace would show
            present = int((values != 0).sum())
            self._masks += 1
            self._positions += int(values.size)
            self._padded += present if is_true_at_padding else int(values.size) - present
            return

    def take_record(self, optimizer: object) -> SetupRecord | None:
        """The set-up with the optimizer that steps; None where it was taken before and has not changed."""
        record = SetupRecord(
            frameworks=tuple(name for name, module in _FRAMEWORKS.items() if module in sys.modules),
            loaders=tuple(LoaderRecord(*key, starts) for key, starts in self._loaders.items()),
            ddp=self._ddp,
            optimizer=None if optimizer is None else _describe_optimizer(optimizer),
            engine=self._engine,
            padding=PaddingRecord(self._positions, self._padded, self._masks) if self._masks else None,
            collects_garbage=gc.isenabled(),
        )
        if record == self._written:
            return None
        self._written = record
        return record


def _describe_optimizer(optimizer: Any) -> OptimizerRecord:
    defaults = getattr(optimizer, "defaults", None) or {}
    groups = getattr(optimizer, "param_groups", None) or ()
    return OptimizerRecord(
        name=type(optimizer).__name__,
        module=type(optimizer).__module__,
        foreach=_flag(defaults.get("foreach")),
        fused=_flag(defaults.get("fused")),
        has_fused="fused" in defaults,
        tensors=sum(len(group.get("params", ())) for group in groups),
    )


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None
