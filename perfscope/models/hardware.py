"""Peaks of GPUs: dense peak rates, each with its source, from ``hardware.toml``.

A peak belongs to one GPU and one data type. It is never guessed: an unknown GPU has none, and a figure that counts
2:4 sparsity is refused, because it would halve the utilisation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from perfscope.constants import GB
from perfscope.errors import UsageError
from perfscope.models.data_files import read_data

SPARSITY_GAIN = 2.0
_COUNT_FIRST = re.compile(r"\s*(\d{1,6})(?:\s*[x\u00d7]\s*|\s+)(?=[^\W\d])", re.IGNORECASE)
_COUNT_LAST = re.compile(r"(?:[\s-]+x|\u00d7)\s*(\d{1,6})\s*$", re.IGNORECASE)
_IN_SERVER = re.compile(r"(?:x|[-_ ])(\d{1,2})x?(?=[A-Za-z])([A-Za-z][\w -]*?)(?:_\d+W)?$")
_MEMORY = re.compile(r"-(\d+)g?$")


class Link(NamedTuple):
    """The fastest link of a GPU to other GPUs: 10**9 bytes/s in each direction, and its source.

    ``reduces``: its switches can add up what passes through them.
    """

    name: str
    gb_s: float
    source: str
    reduces: bool = False


class Gpu(NamedTuple):
    """One GPU model: its names, its dense peaks in TFLOP/s by data type, and their source.

    ``memory_bytes`` is by the datasheet; a program can see some percent more or less. ``memory_tb_s`` is the peak rate
    of its memory. ``fp4_others`` are what other documents state of the peak of 4-bit products.
    """

    name: str
    cuda_names: tuple[str, ...]
    dense_tflops: Mapping[str, float]
    source: str
    aliases: tuple[str, ...] = ()
    memory_bytes: int = 0
    link: Link | None = None
    memory_tb_s: float | None = None
    per_node: int | None = None
    fp4_source: str = ""
    fp4_others: tuple[str, ...] = ()

    @property
    def dense_16bit_tflops(self) -> float:
        """The peak in bf16 or fp16, whichever is higher."""
        return max(self.dense_tflops[name] for name in ("bf16", "fp16") if name in self.dense_tflops)

    @property
    def training_dtype(self) -> str:
        """The 16-bit format that training uses on this GPU: bf16 if available, else fp16."""
        return "bf16" if "bf16" in self.dense_tflops else "fp16"

    def peak_tflops(self, dtype: str) -> float:
        """The dense peak in one data type; UsageError where the GPU has none."""
        if dtype not in self.dense_tflops:
            needed = read_data("hardware")["needs"].get(dtype)
            reason = f": its products need {needed}" if needed else ""
            raise UsageError(
                f"{self.name} has no peak in {dtype}{reason}", hint=f"it has one in {', '.join(self.dense_tflops)}"
            )
        return self.dense_tflops[dtype]

    def source_of(self, dtype: str) -> str:
        """The document of the peak in one data type."""
        return self.fp4_source if "fp4" in dtype else self.source

    def describe_others(self, dtype: str) -> tuple[str, ...]:
        """A sentence on other documents that state another peak in this data type; empty where none does."""
        if "fp4" not in dtype or not self.fp4_others:
            return ()
        stated = "; ".join(self.fp4_others)
        return (f"documents differ on the {dtype} peak of {self.name}: {self.fp4_source}; {stated}",)


@cache
def gpus() -> tuple[Gpu, ...]:
    """Read every GPU of ``hardware.toml``, in its order."""
    return tuple(map(_parse_entry, read_data("hardware")["gpu"]))


def _parse_entry(entry: Mapping[str, Any]) -> Gpu:
    link, fp4, tflops = entry.get("link"), entry.get("fp4"), dict(entry["dense_tflops"])
    if fp4:
        tflops |= dict.fromkeys(("fp4", *fp4["formats"]), fp4["tflops"]) | {"mxfp8": tflops["fp8"]}
    return Gpu(
        name=entry["name"],
        cuda_names=tuple(entry["cuda_names"]),
        dense_tflops=tflops,
        source=entry["source"],
        aliases=tuple(entry.get("aliases", ())),
        memory_bytes=int(entry["memory_gb"] * GB),
        link=Link(link["name"], link["gb_s"], entry.get("link_source", ""), link.get("reduces", False))
        if link
        else None,
        memory_tb_s=entry.get("memory_tb_s"),
        per_node=entry.get("per_node"),
        fp4_source=entry.get("fp4_source", ""),
        fp4_others=tuple(entry.get("fp4_others", ())),
    )


@cache
def lookup_gpu(name: str) -> Gpu | None:
    """Look a GPU up by its name, an alias, its CUDA name or as people write it; None where it is not listed.

    >>> [lookup_gpu(name).name for name in ("DGX-GB300", "8xH100", "h100_80gb", "AMD Instinct MI300X 192GB HBM3")]
    ['gb300', 'h100-sxm', 'h100-sxm', 'mi300x']
    """
    key = resolve_family(name) or _normalize(name)
    memory = _MEMORY.search(key)
    for gpu in gpus() if key else ():
        names = set(map(_normalize, (gpu.name, *gpu.aliases, *gpu.cuda_names)))
        if key in names or (memory and gpu.memory_bytes == int(memory[1]) * GB and key[: memory.start()] in names):
            return gpu
    return None


def split_count(name: str) -> tuple[int | None, str]:
    """The number in a name of several GPUs or servers, and the name of one; no number where none is stated.

    >>> split_count("1280xNVIDIA GB200"), split_count("mi300x")
    ((1280, 'NVIDIA GB200'), (None, 'mi300x'))
    """
    match = _COUNT_FIRST.match(name) or _COUNT_LAST.search(name)
    return (int(match[1]), name[: match.start()] + name[match.end() :]) if match else (None, name)


class Platform(NamedTuple):
    """Servers, all their GPUs, and the GPU's name in ``hardware.toml``; None where a name does not state them."""

    nodes: int | None
    gpus: int | None
    gpu: str | None


def read_platform(name: str) -> Platform:
    """The servers that MLPerf's ``submission_platform`` names.

    >>> read_platform("1280xNVIDIA GB200")
    Platform(nodes=1280, gpus=5120, gpu='gb200')
    >>> read_platform("2xXE9680Lx8B200-SXM-180GB")
    Platform(nodes=2, gpus=16, gpu='b200-sxm')
    """
    nodes, server = split_count(name)
    inside = _IN_SERVER.search(server)
    gpu, per_node = lookup_gpu(server), None
    if gpu is not None:
        per_node = gpu.per_node
    elif inside:
        gpu = lookup_gpu(inside[2])
        per_node = int(inside[1]) if gpu else None
    return Platform(nodes, nodes * per_node if nodes and per_node else None, gpu.name if gpu else None)


def find_gpu(name: str) -> Gpu:
    """Look a GPU up by its name, an alias or its CUDA name; UsageError where none has it: a peak is never guessed."""
    gpu = lookup_gpu(name)
    if gpu is None:
        raise UsageError(describe_unlisted(name), hint=suggest_gpus(name))
    return gpu


def describe_unlisted(name: str) -> str:
    """Say that a GPU is not listed, so it has no peak."""
    return f"the GPU {name!r} is not in hardware.toml, so its peak is unknown"


def suggest_gpus(typed: str) -> str:
    """Every value of ``--gpu`` without aliases, for people; before them those that are spelled much as a typed one."""
    import difflib  # few names are mistyped

    listed = {name: gpu.name for gpu in gpus() for name in (gpu.name, *gpu.aliases)} | read_data("hardware")["family"]
    near = dict.fromkeys(listed[name] for name in difflib.get_close_matches(_normalize(typed), listed))
    suggestion = f"did you mean {' or '.join(near)}? " if near else ""
    return f"{suggestion}known: {', '.join(gpu.name for gpu in gpus())}"


def resolve_family(name: str) -> str | None:
    """The GPU that a family's name, such as ``h100``, stands for; None for the name of a single GPU."""
    families: dict[str, str] = read_data("hardware")["family"]
    return families.get(_normalize(name))


def fastest_gpu() -> Gpu:
    """The GPU with the highest dense 16-bit peak."""
    return max(gpus(), key=lambda gpu: gpu.dense_16bit_tflops)


def describe_above_peak(tflops: float, gpu: Gpu | None) -> str | None:
    """Why TFLOP/s of a GPU cannot be, where their data type is unknown; None where they can.

    Those of an unknown GPU are above the dense 16-bit peak of every listed one.
    """
    fastest = fastest_gpu()
    peak = max(gpu.dense_tflops.values()) if gpu else fastest.dense_16bit_tflops
    if tflops <= peak:
        return None
    place = f"every dense peak of {gpu.name}" if gpu else f"the dense 16-bit peak of {fastest.name}"
    narrow = "" if gpu else "the products are of 8 or 4 bits, or "
    reason = f"{narrow}there is a bug in the calculation, or an input is wrong"
    return f"{tflops:.1f} TFLOPs per GPU is above {place} ({peak:g}): {reason}"


def check_dense(peak_tflops: float, dtype: str, gpu: Gpu | None) -> float:
    """Return a peak that a user typed, in TFLOP/s.

    Raises UsageError where it is not positive, or is the figure of the GPU (of any without one) with 2:4 sparsity,
    which no training step uses.
    """
    if not 0 < peak_tflops < float("inf"):
        raise UsageError(f"a peak of {peak_tflops:g} TFLOP/s is not possible")
    candidates = (gpu,) if gpu else gpus()
    dense = [(candidate, candidate.dense_tflops[dtype]) for candidate in candidates if dtype in candidate.dense_tflops]
    if any(round(peak_tflops) == round(peak) for _, peak in dense):
        return peak_tflops
    for candidate, peak in dense:
        if round(peak_tflops) == round(SPARSITY_GAIN * peak):
            raise UsageError(
                f"{peak_tflops:g} TFLOP/s is the {dtype} peak of {candidate.name} with 2:4 sparsity",
                hint=f"its dense peak is {peak:g}: utilisation against the sparse one would be half of what it is",
            )
    return peak_tflops


def _normalize(name: str) -> str:
    words = re.split(r"[\s_()-]+", re.sub(r"(?<=\d)[\s-]*gb\b", "", split_count(name)[1].lower()))
    return "-".join(word for word in words if word and word not in read_data("hardware")["empty_words"])
