"""What a run uses already, so that no finding advises it."""

from __future__ import annotations

import re

from perfscope.analyzers.findings.training import Training
from perfscope.tables.kernel_precision import SIXTEEN_BIT, product_precision

_RANK = "/setup/ranks/0"
#: Kernels that torch.compile writes, and those of attention that keeps its matrix to itself.
_COMPILED = re.compile(r"^triton_(?:poi|red|per|tem|for|split_scan)_")
_FUSED_ATTENTION = re.compile(r"fmha|flash|native_sdpa|attn_fwd|attn_bwd|attention_kernel")
_REDUCES = ("all_reduce", "reduce_scatter")
_HALVES = ("bfloat16", "half", "float16")


def offer(*choices: tuple[str, bool]) -> str:
    """The choices that are not in use, as a sentence goes on.

    >>> offer(("`--a`", True), ("`--b`", False), ("less", False))
    '`--b`, or less'
    """
    return ", or ".join(text for text, is_used in choices if not is_used)


def has_option(training: Training, name: str) -> bool:
    """Whether an option stands in the command line, such as ``--async-save``."""
    return name in training.facts.members(f"{_RANK}/options")


def is_compiled(training: Training) -> bool:
    """Whether torch.compile compiled the model: it took time, and its kernels run, where kernels are known."""
    facts = training.facts
    names = [facts.text(f"{row}/name") for row in facts.rows("/kernels/names")]
    if names:
        return any(_COMPILED.search(name) for name in names)
    return any(facts.amount(f"{row}/parts_ns/compilation") for row in facts.rows("/wall_clock/ranks"))


def has_fused_attention(training: Training) -> bool:
    """Whether kernels run that keep the matrix of attention to themselves."""
    facts = training.facts
    return any(_FUSED_ATTENTION.search(facts.text(f"{row}/name")) for row in facts.rows("/kernels/names"))


def multiplies_halves(training: Training) -> bool:
    """Whether some products are in bf16 or fp16 already."""
    names = (training.facts.text(f"{row}/name") for row in training.facts.rows("/kernels/names"))
    return any(product_precision(name) in {"bf16", "fp16", SIXTEEN_BIT} for name in names)


def reduces_halves(training: Training) -> bool:
    """Whether most bytes of reductions are of 16-bit numbers."""
    facts, size_of = training.facts, {True: 0.0, False: 0.0}
    for row in facts.rows("/collectives/operations"):
        if facts.text(f"{row}/operation") in _REDUCES:
            is_half = facts.text(f"{row}/dtype").lower() in _HALVES
            size_of[is_half] += facts.amount(f"{row}/bytes") * facts.amount(f"{row}/calls")
    return size_of[True] > size_of[False]


def has_expandable_segments(training: Training) -> bool:
    """Whether torch's allocator may grow its segments."""
    return "expandable_segments:true" in training.facts.text("/setup/allocator").replace(" ", "").lower()


def saves_beside_training(training: Training) -> bool:
    """Whether all checkpoints are written while training goes on."""
    facts = training.facts
    return all(facts.is_true(f"{row}/asynchronous") for row in facts.rows("/saves/saves"))


def has_stacks(training: Training) -> bool:
    """Whether the traces hold the lines of Python that called."""
    facts = training.facts
    return any(
        facts.text(f"{caller}/function")
        for row in facts.rows("/calls/ranks")
        for caller in facts.rows(f"{row}/callers")
    )
