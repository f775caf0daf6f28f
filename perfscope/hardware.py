"""What a GPU can do at most: dense peak rates, each with its source, from ``hardware.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from perfscope.errors import UsageError


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU model.

    Attributes:
        name: The name that ``--gpu`` takes.
        cuda_names: What ``torch.cuda.get_device_name()`` prints for it.
        dense_tflops: Peak TFLOP/s without sparsity, by number format.
        source: Where the figures come from.
    """

    name: str
    cuda_names: tuple[str, ...]
    dense_tflops: Mapping[str, float]
    source: str

    @property
    def dense_16bit_tflops(self) -> float:
        """The peak in bf16 or fp16, whichever is higher."""
        return max(self.dense_tflops[name] for name in ("bf16", "fp16") if name in self.dense_tflops)


@cache
def gpus() -> tuple[Gpu, ...]:
    """Read every GPU of ``hardware.toml``, in its order."""
    text = files("perfscope").joinpath("hardware.toml").read_text("utf-8")
    return tuple(
        Gpu(entry["name"], tuple(entry["cuda_names"]), entry["dense_tflops"], entry["source"])
        for entry in tomllib.loads(text)["gpu"]
    )


def find_gpu(name: str) -> Gpu:
    """Look a GPU up by its name here or by the name that CUDA gives it.

    Raises:
        UsageError: No GPU has that name; a peak is never guessed.
    """
    for gpu in gpus():
        if name.lower() == gpu.name or name in gpu.cuda_names:
            return gpu
    known = ", ".join(gpu.name for gpu in gpus())
    raise UsageError(f"the GPU {name!r} is not in hardware.toml, so its peak is not known", hint=f"known: {known}")


def fastest_gpu() -> Gpu:
    """The GPU with the highest dense 16-bit peak."""
    return max(gpus(), key=lambda gpu: gpu.dense_16bit_tflops)
