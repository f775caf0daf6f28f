"""Constants of the time of a step, each set with its source, from ``step_times.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from perfscope.models.hardware import Gpu

_FILE = Path(__file__).with_name("step_times.toml")


class StepConstants(NamedTuple):
    """What a software stack reaches on a GPU, as shares of the peaks of ``hardware.toml``, and its fixed times.

    Attributes:
        products: Share of the peak that large matrix products reach.
        fp8_products: The same of products in fp8, of the fp8 peak.
        small_tokens: Tokens that a product costs beside its own: small ones are slow.
        flash: Share of the 16-bit peak that fused attention reaches.
        memory: Share of the memory's rate that kernels without products reach, for the bytes of fused ones.
        optimizer: The same of the optimizer.
        weight_bytes: Of a parameter, that a micro-batch moves beside products: casts, gathered copies, added gradients.
        link: Share of the link between GPUs of a node.
        network: Share of the rate between nodes.
        link_latency_s: Of a collective in a node, for each doubling of its ranks.
        network_latency_s: The same between nodes.
        host_s: To launch one pass of one layer.
        gather_host_s: To launch the gathers and the reduction of one layer's weights with ZeRO 3.
        pipeline_host_s: To launch one layer of nanotron, for each tensor-parallel rank, where a pipeline spans nodes.
        bucket_latency_s: To reduce one bucket of gradients, for each further replica.
        step_s: Of each step, whatever is in it.
        overlap: Share of the computation behind which gradients and shards travel.
    """

    products: float
    fp8_products: float
    small_tokens: float
    flash: float
    memory: float
    optimizer: float
    weight_bytes: float
    link: float
    network: float
    link_latency_s: float
    network_latency_s: float
    host_s: float
    gather_host_s: float
    pipeline_host_s: float
    bucket_latency_s: float
    step_s: float
    overlap: float


#: Those of a peak, which none exceeds.
SHARES = frozenset({"products", "fp8_products", "flash", "memory", "optimizer", "link", "network", "overlap"})


class Node(NamedTuple):
    """How many GPUs the fast link joins, and the rate of one GPU to others, in 10**9 bytes/s and direction."""

    gpus: int
    network_gb_s: float


@dataclass(frozen=True, slots=True)
class Stack:
    """A software stack on a family of GPUs.

    ``zero`` are the stages that it was measured with. ``error`` is the relative error that 90 % of the rows stay below
    that were not used to fit, also of other tuned software. For another GPU than ``gpus``, and for mixtures of experts,
    it is that of ``[elsewhere]``. ``tables`` name the sources of the rows in ``fixtures/published/step_times.csv.gz``.
    ``software`` is what alone it holds for; "" where for all that have no stack of their own.
    """

    name: str
    gpus: tuple[str, ...]
    zero: tuple[int, ...]
    constants: StepConstants
    error: float
    source: str
    tables: tuple[str, ...]
    software: str = ""
    is_measured: bool = True


@cache
def _document() -> dict[str, Any]:
    return tomllib.loads(_FILE.read_text("utf-8"))


@cache
def stacks() -> tuple[Stack, ...]:
    """Every stack of the file, in its order."""
    return tuple(
        Stack(
            entry["name"],
            tuple(entry["gpus"]),
            tuple(entry["zero"]),
            prior_constants()._replace(**entry["constants"]),
            entry["error"],
            entry["source"],
            tuple(entry["tables"]),
            entry.get("software", ""),
        )
        for entry in _document()["stack"]
    )


def prior_constants() -> StepConstants:
    """What is assumed before any row was seen."""
    return StepConstants(**_document()["prior"]["constants"])


@cache
def step_counts() -> Mapping[str, float]:
    """What a step moves and repeats, whatever the software, by the names in ``[counts]``."""
    return dict(_document()["counts"]["values"])


@cache
def spread() -> Mapping[str, float]:
    """How far constants, rows and configurations are from what is expected, by the names in ``[spread]``."""
    return dict(_document()["spread"]["values"])


def find_stack(gpu: Gpu, zero: int, software: str = "", *, has_experts: bool = False) -> Stack:
    """The stack of a GPU, a stage of ZeRO and software; the nearest for a mixture of experts, or without rows."""
    named = [stack for stack in stacks() if zero in stack.zero and stack.software == software]
    fitting = named or [stack for stack in stacks() if zero in stack.zero and not stack.software]
    elsewhere = _document()["elsewhere"]
    near = fitting[-1] if gpu.dense_16bit_tflops > elsewhere["newer_above_tflops"] else fitting[0]
    own = next((stack for stack in fitting if gpu.name in stack.gpus), None)
    if own is not None and not has_experts:
        return own
    error = elsewhere["experts_error" if has_experts else "error"]
    return replace(own or near, error=error, is_measured=False)


def find_node(gpu: Gpu) -> Node:
    """The usual node of a GPU."""
    nodes: list[dict[str, Any]] = _document()["node"]
    entry = next((node for node in nodes if gpu.name in node["names"]), nodes[0])
    return Node(entry["gpus"], entry["network_gb_s"])
