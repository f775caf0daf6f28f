"""What a DeepSpeed config says about the work of a step and how its state is sharded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from perfscope.errors import SourceError, UsageError

_BATCH_KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_LAST_STAGE = 3


class DeepSpeedConfig(NamedTuple):
    """A DeepSpeed config, as far as operations and memory depend on it; absent is what it leaves to run time.

    Attributes:
        train_batch_size: Global batch size.
        micro_batch: Sequences of one forward pass on one GPU.
        accumulation: Micro-batches of one step.
        zero_stage: Stage of ZeRO; 0 without it.
        dtype: ``bf16``, ``fp16`` or ``fp32``.
        offload: What is kept in host memory or on disk: ``optimizer``, ``parameters``.
    """

    train_batch_size: int | None
    micro_batch: int | None
    accumulation: int | None
    zero_stage: int
    dtype: str
    offload: tuple[str, ...] = ()

    def global_batch(self, data_parallel: int | None) -> int | None:
        """The global batch size; absent where neither it nor all of its factors are known."""
        if self.train_batch_size is not None or not (self.micro_batch and data_parallel):
            return self.train_batch_size
        return self.micro_batch * (self.accumulation or 1) * data_parallel


def read_deepspeed_config(path: Path) -> DeepSpeedConfig:
    """Read a DeepSpeed config. The ``"auto"`` of the Hugging Face Trainer counts as unsaid.

    Raises:
        SourceError: The file cannot be read.
        UsageError: It is no DeepSpeed config, or a value in it is not possible.
    """
    try:
        config = json.loads(path.read_bytes())
    except OSError as error:
        raise SourceError(path, f"cannot be read: {error.strerror}") from None
    except ValueError:
        raise UsageError(f"{path} is not JSON") from None
    known = (*_BATCH_KEYS, "zero_optimization", "fp16", "bf16", "optimizer")
    if not isinstance(config, dict) or not any(key in config for key in known):
        raise UsageError(f"{path} is no DeepSpeed config: it has none of {', '.join(known[:4])}")
    total, micro, accumulation = (_count(config, key, path) for key in _BATCH_KEYS)
    if total and total % ((micro or 1) * (accumulation or 1)):
        raise UsageError(
            f"{path}: a train_batch_size of {total} does not divide into micro-batches of {micro or 1} "
            f"and {accumulation or 1} accumulation steps"
        )
    zero = config.get("zero_optimization") or {}
    return DeepSpeedConfig(
        train_batch_size=total,
        micro_batch=micro,
        accumulation=accumulation,
        zero_stage=_stage(zero, path),
        dtype="bf16" if _enabled(config, "bf16") else "fp16" if _enabled(config, "fp16") else "fp32",
        offload=tuple(
            what
            for what, key in (("optimizer", "offload_optimizer"), ("parameters", "offload_param"))
            if isinstance(zero.get(key), Mapping) and zero[key].get("device", "cpu") != "none"
        ),
    )


def _count(config: Mapping[str, Any], key: str, path: Path) -> int | None:
    value = config.get(key)
    if value is None or value == "auto":
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(f"{path}: {key} must be at least 1, not {value!r}")
    return value


def _stage(zero: Mapping[str, Any], path: Path) -> int:
    stage = zero.get("stage", 0)
    if stage not in range(_LAST_STAGE + 1):
        raise UsageError(f"{path}: the ZeRO stage is 0 to {_LAST_STAGE}, not {stage!r}")
    return int(stage)


def _enabled(config: Mapping[str, Any], key: str) -> bool:
    section = config.get(key) or config.get({"bf16": "bfloat16"}.get(key, key))
    return isinstance(section, Mapping) and section.get("enabled") in (True, "auto")
