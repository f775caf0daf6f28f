"""What a GPU can do at most: dense peak rates, each with its source, from ``hardware.toml``.

A peak belongs to one GPU and one number format. It is never guessed: an unknown GPU has none, and a figure that counts
2:4 sparsity is refused, because it would halve the utilisation.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from perfscope.errors import UsageError

SPARSITY_GAIN = 2.0
_ENTRY = "[[gpu]]"
_SAME_PEAK = 0.01
_VENDOR_WORDS = ("nvidia-", "tesla-", "geforce-", "amd-", "instinct-")


class Gpu(NamedTuple):
    """One GPU model.

    Attributes:
        name: The name that ``--gpu`` takes.
        cuda_names: What ``torch.cuda.get_device_name()`` prints for it.
        dense_tflops: Peak TFLOP/s without sparsity, by number format.
        source: Where the figures come from.
        aliases: Other names that ``--gpu`` takes.
        memory_bytes: Memory by the datasheet; what a program sees can be some percent more or less.
        power_w: The default power limit.
    """

    name: str
    cuda_names: tuple[str, ...]
    dense_tflops: Mapping[str, float]
    source: str
    aliases: tuple[str, ...] = ()
    memory_bytes: int = 0
    power_w: int = 0

    @property
    def dense_16bit_tflops(self) -> float:
        """The peak in bf16 or fp16, whichever is higher."""
        return max(self.dense_tflops[name] for name in ("bf16", "fp16") if name in self.dense_tflops)

    @property
    def training_dtype(self) -> str:
        """The 16-bit format that training uses on it: bf16 where it has it, else fp16."""
        return "bf16" if "bf16" in self.dense_tflops else "fp16"

    def peak_tflops(self, dtype: str) -> float:
        """The dense peak in one number format.

        Raises:
            UsageError: The GPU has no peak in that format.
        """
        if dtype not in self.dense_tflops:
            known = ", ".join(self.dense_tflops)
            raise UsageError(f"{self.name} has no peak in {dtype}", hint=f"it has one in {known}")
        return self.dense_tflops[dtype]


@cache
def _text() -> str:
    return files("perfscope.models").joinpath("hardware.toml").read_text("utf-8")


@cache
def _families() -> dict[str, str]:
    head, _, _ = _text().partition(_ENTRY)
    families: dict[str, str] = tomllib.loads(head)["family"]
    return families


@cache
def gpus() -> tuple[Gpu, ...]:
    """Read every GPU of ``hardware.toml``, in its order."""
    return tuple(_gpu(chunk) for chunk in _text().split(_ENTRY)[1:])


def _gpu(chunk: str) -> Gpu:
    entry: dict[str, Any] = tomllib.loads(chunk)
    return Gpu(
        name=entry["name"],
        cuda_names=tuple(entry["cuda_names"]),
        dense_tflops=entry["dense_tflops"],
        source=entry["source"],
        aliases=tuple(entry.get("aliases", ())),
        memory_bytes=int(entry["memory_gb"] * 10**9),
        power_w=entry["power_w"],
    )


def look_up(name: str) -> Gpu | None:
    """Look a GPU up by its name, an alias or the name that CUDA gives it; absent where it is not known."""
    wanted = _plain(name)
    wanted = _families().get(wanted, wanted)
    for chunk in _text().split(_ENTRY)[1:]:
        # Parsing the whole file takes longer than all else that a command does.
        if wanted and wanted in _plain(chunk):
            gpu = _gpu(chunk)
            if wanted in {_plain(known) for known in (gpu.name, *gpu.aliases, *gpu.cuda_names)}:
                return gpu
    return None


def find_gpu(name: str) -> Gpu:
    """Look a GPU up by its name, an alias or the name that CUDA gives it.

    Raises:
        UsageError: No GPU has that name; a peak is never guessed.
    """
    gpu = look_up(name)
    if gpu is None:
        raise UsageError(not_known(name), hint=f"known: {names()}")
    return gpu


def not_known(name: str) -> str:
    """Say that a GPU has no peak."""
    return f"the GPU {name!r} is not in hardware.toml, so its peak is not known"


def names() -> str:
    """Every name that ``--gpu`` takes, aliases left out."""
    return ", ".join(re.findall(r'^name = "(.*)"', _text(), re.MULTILINE))


def family_of(name: str) -> str | None:
    """The GPU that is taken for a name of several, such as ``h100``; absent for a name of one."""
    return _families().get(_plain(name))


def fastest_gpu() -> Gpu:
    """The GPU with the highest dense 16-bit peak."""
    return _gpu(max(_text().split(_ENTRY)[1:], key=_peak_in))


def _peak_in(chunk: str) -> float:
    """The 16-bit peak of one entry, without parsing it."""
    return max(float(peak) for peak in re.findall(r"\b(?:bf16|fp16) = ([\d.]+)", chunk))


def check_dense(peak_tflops: float, dtype: str, gpu: Gpu | None) -> float:
    """Return a peak that a user gave, unless it is a datasheet's figure with sparsity.

    Args:
        peak_tflops: The peak, in TFLOP/s.
        dtype: The number format that it is for.
        gpu: The GPU that it is for; absent to compare with all of them.

    Raises:
        UsageError: It is not positive, or counts 2:4 sparsity, which no training step uses.
    """
    if not 0 < peak_tflops < float("inf"):
        raise UsageError(f"a peak of {peak_tflops:g} TFLOP/s is not possible")
    candidates = (gpu,) if gpu else gpus()
    dense = [(known, known.dense_tflops[dtype]) for known in candidates if dtype in known.dense_tflops]
    if any(_same(peak_tflops, peak) for _, peak in dense):
        return peak_tflops
    for known, peak in dense:
        if _same(peak_tflops, SPARSITY_GAIN * peak):
            raise UsageError(
                f"{peak_tflops:g} TFLOP/s is the {dtype} peak of {known.name} with 2:4 sparsity",
                hint=f"its dense peak is {peak:g}: utilisation against the sparse one would be half of what it is",
            )
    return peak_tflops


def _same(value: float, peak: float) -> bool:
    return abs(value / peak - 1) < _SAME_PEAK


def _plain(name: str) -> str:
    plain = "-".join(name.lower().replace("_", " ").split())
    for word in _VENDOR_WORDS:
        plain = plain.removeprefix(word)
    return plain
