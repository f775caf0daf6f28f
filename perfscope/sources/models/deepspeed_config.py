"""A DeepSpeed config: the batch sizes of a step, and how weights, gradients and optimizer are sharded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from perfscope.errors import SourceError, UsageError

_BATCH_KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_USUAL_KEYS = (*_BATCH_KEYS, "zero_optimization", "fp16", "bf16", "optimizer")
_OFFLOAD_KEYS = {"optimizer": "offload_optimizer", "parameters": "offload_param"}
_LAST_STAGE = 3


class DeepSpeedConfig(NamedTuple):
    """A DeepSpeed config, as far as operations and memory depend on it; None for what is set at run time.

    Attributes:
        train_batch_size: Global batch size.
        micro_batch: Sequences of one forward pass on one GPU.
        zero_stage: Stage of ZeRO; 0 without it.
        dtype: ``bf16``, ``fp16`` or ``fp32``.
        offload: States in host memory or on disk: ``optimizer``, ``parameters``.
    """

    train_batch_size: int | None
    micro_batch: int | None
    zero_stage: int
    dtype: str
    offload: tuple[str, ...] = ()


def read_deepspeed_config(path: Path) -> DeepSpeedConfig:
    """Read a DeepSpeed config. The ``"auto"`` of the Hugging Face Trainer counts as missing.

    Raises:
        SourceError: The file cannot be read.
        UsageError: It is not a DeepSpeed config, or a value in it is not possible.
    """
    try:
        config = json.loads(path.read_bytes())
    except OSError as error:
        raise SourceError(path, f"cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{path} is not JSON") from None
    if not isinstance(config, dict) or not any(key in config for key in _USUAL_KEYS):
        raise UsageError(f"{path} is not a DeepSpeed config: it has none of {', '.join(_USUAL_KEYS[:4])}")
    total, micro, accumulation = (_count(config, key, path) for key in _BATCH_KEYS)
    if total and total % ((micro or 1) * (accumulation or 1)):
        raise UsageError(
            f"{path}: a train_batch_size of {total} does not divide into micro-batches of {micro or 1} "
            f"and {accumulation or 1} accumulation steps"
        )
    zero = _section(config, "zero_optimization")
    return DeepSpeedConfig(
        train_batch_size=total,
        micro_batch=micro,
        zero_stage=_stage(zero, path),
        dtype="bf16" if _enabled(config, "bf16") else "fp16" if _enabled(config, "fp16") else "fp32",
        offload=tuple(
            state
            for state, key in _OFFLOAD_KEYS.items()
            if isinstance(zero.get(key), Mapping) and _section(zero, key).get("device", "cpu") != "none"
        ),
    )


def _count(config: Mapping[str, object], key: str, path: Path) -> int | None:
    value = config.get(key)
    if value is None or value == "auto":
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(f"{path}: {key} must be at least 1, not {value!r}")
    return value


def _stage(zero: Mapping[str, object], path: Path) -> int:
    value = zero.get("stage", 0)
    for stage in range(_LAST_STAGE + 1):
        if value == stage:
            return stage
    raise UsageError(f"{path}: the ZeRO stage is 0 to {_LAST_STAGE}, not {value!r}")


def _enabled(config: Mapping[str, object], key: str) -> bool:
    section = _section(config, key) or _section(config, {"bf16": "bfloat16"}.get(key, key))
    return section.get("enabled") in (True, "auto")


def _section(config: Mapping[str, object], key: str) -> Mapping[str, object]:
    """A section of the config; empty where it is missing."""
    section = config.get(key)
    return section if isinstance(section, Mapping) else {}
