"""Findings by the roofline and the tree of modules: norms and losses of many kernels, operators far from their peak.

They need runs that were recorded with `--shapes` or `--modules`, or traces of which these analyzers are asked for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from perfscope.analyzers.findings.facts import Evidence
from perfscope.analyzers.findings.finding import Account, Basis, Cause, Confidence, Rule, Rules
from perfscope.analyzers.findings.in_use import has_option, is_compiled, offer
from perfscope.analyzers.findings.options import MEGATRON, TORCH, TRAINER, option
from perfscope.analyzers.findings.training import Training
from perfscope.constants import US_PER_MS
from perfscope.report import percent

_NORM = re.compile(r"norm\d*$|ln_?(?:\d+|f)$")
#: A norm by one operator launches one kernel forward, two or three backward, and maybe a sum of gradients.
_FUSED_KERNELS = 4.0
#: One that launches more than so many was written operator by operator.
_MOST_FUSED_KERNELS = 10.0
_LOSS = re.compile(r"^_?log_softmax(?:_backward_data)?$")
_HALVES = ("bf16", "fp16")
#: The shortest rows of logits: others are a softmax over classes, which costs nothing.
_FEWEST_CLASSES = 1024
#: Kernels attain so much of a datasheet's peak at best, as measured on H200 (79 % of products, 91 % of copies).
_ATTAINED = 0.8
#: Backward passes of attention exponentiate and add between their products: 36 to 58 % on H200, by the best library.
_ATTAINED_BY_ATTENTION = 0.5
#: An operator that attains less than this share of that is far from it.
_FAR = 0.6
#: Kernels of good libraries leave up to 2 % of a step, such as the backward pass of a layer norm.
_SMALLEST_SHARE = 0.03
#: A shorter kernel is bound by its launch.
_SHORTEST_KERNEL_US = 10.0
_MOST_NAMED = 3
_TORCH_COMPILE = "`torch.compile(model)`, which makes one kernel of operators that follow each other"
#: What helps an operator, by its category in the roofline; the other categories have causes of their own.
_REMEDIES = {
    "norm": ("`model.to(memory_format=torch.channels_last)` where its input is an image", _TORCH_COMPILE),
    "convolution": ("`model.to(memory_format=torch.channels_last)` with `torch.backends.cudnn.benchmark = True`",),
    "matrix product": (
        'sizes that are multiples of 64, `torch.compile(mode="max-autotune")`',
        "a larger micro-batch",
    ),
    "attention": ("`torch.nn.attention.sdpa_kernel` with another backend", "a head size of 64 or 128"),
    "embedding and indexing": ("an index of fewer duplicates, `torch.index_select`", _TORCH_COMPILE),
    "pooling": ("`model.to(memory_format=torch.channels_last)`", _TORCH_COMPILE),
}


def _rank_rows(training: Training, analyzer: str) -> tuple[Sequence[str], int]:
    """The ranks of a result, and the first one's number."""
    rows = training.facts.rows(f"/{analyzer}/ranks")
    return rows, training.facts.rank(rows[0]) if rows else 0


def find_unfused_norms(training: Training) -> Cause | None:
    """Norms that are written operator by operator: each operator reads and writes all states again."""
    facts = training.facts
    ranks, number = _rank_rows(training, "modules")
    norms: dict[str, float] = {}
    for row in facts.rows(f"{ranks[0]}/modules") if ranks else ():
        calls = facts.amount(f"{row}/calls")
        kernels = facts.amount(f"{row}/self_kernels") / calls if calls else 0.0
        if kernels > _MOST_FUSED_KERNELS and _NORM.search(facts.text(f"{row}/path").lower()):
            norms[row] = facts.amount(f"{row}/self_us") * (1 - _FUSED_KERNELS / kernels)
    cost_us = sum(norms.values())
    if not cost_us:
        return None
    row = max(norms, key=lambda row: norms[row])
    whole_us = sum(facts.amount(f"{norm}/self_us") for norm in norms)
    evidence = Evidence(
        f"{len(norms)} norms, such as `{facts.text(f'{row}/path')}`, launch "
        f"{facts.amount(f'{row}/self_kernels') / facts.amount(f'{row}/calls'):.0f} kernels each, and take "
        f"{whole_us / US_PER_MS:.2f} ms of a step.",
        (f"{row}/path", f"{row}/self_kernels", *(f"{norm}/self_us" for norm in norms)),
    )
    advice = "Try " + option(
        training,
        {
            TRAINER: "`use_liger_kernel=True` of TrainingArguments.",
            MEGATRON: "`--transformer-impl transformer_engine`.",
            TORCH: offer(
                ("`torch.nn.functional.rms_norm` or `layer_norm`", False),
                ("`torch.compile` of the norm", is_compiled(training)),
            )
            + ".",
        },
    )
    return Cause(
        cost_us, (cost_us / 2, whole_us), (number,), (evidence,), advice, Confidence.MEDIUM, Basis.BOUND
    )  # fmt: skip


def find_unfused_loss(training: Training) -> Cause | None:
    """The cross entropy casts its logits to fp32 first: they are the largest tensors of many models."""
    facts = training.facts
    ranks, number = _rank_rows(training, "roofline")
    rows = facts.rows(f"{ranks[0]}/operators") if ranks else []
    losses = [row for row in rows if _LOSS.match(facts.text(f"{row}/operator")) and _is_wide(training, row)]
    shapes = {_first_shape(facts.text(f"{row}/inputs")) for row in losses}
    casts = [row for row in rows if facts.text(f"{row}/operator") == "copy_" and _casts(training, row) in shapes]
    if not casts:
        return None
    casts_us, losses_us = (sum(facts.amount(f"{row}/device_us") for row in chosen) for chosen in (casts, losses))
    cost_us = casts_us + losses_us / 2  # no casts, and half of the bytes
    evidence = Evidence(
        f"Logits are cast to fp32 and back for {casts_us / US_PER_MS:.2f} ms of a step, and their softmax in fp32 "
        f"takes {losses_us / US_PER_MS:.2f} ms.",
        tuple(f"{row}/device_us" for row in (*casts, *losses)),
    )
    advice = "Try " + option(
        training,
        {
            TRAINER: "`use_liger_kernel=True` of TrainingArguments.",
            MEGATRON: "" if has_option(training, "--cross-entropy-loss-fusion") else "`--cross-entropy-loss-fusion`.",
            TORCH: "`cross_entropy` of the logits without `.float()`, whose sums are in fp32, or a fused one.",
        },
    )
    interval = casts_us, casts_us + losses_us
    return Cause(cost_us, interval, (number,), (evidence,), advice, Confidence.MEDIUM, Basis.BOUND)


def _first_shape(inputs: str) -> str:
    """The shape of an operator's first input, as the roofline writes it.

    >>> _first_shape("fp32 8192x32000, bf16 8192x32000")
    '8192x32000'
    """
    return inputs.split(",", maxsplit=1)[0].rpartition(" ")[2]


def _is_wide(training: Training, row: str) -> bool:
    """Whether an operator's first input has many classes in fp32."""
    inputs = training.facts.text(f"{row}/inputs")
    width = _first_shape(inputs).rpartition("x")[2]
    return inputs.startswith("fp32 ") and width.isdigit() and int(width) >= _FEWEST_CLASSES


def _casts(training: Training, row: str) -> str:
    """The shape of a copy between fp32 and a half-precision type; empty of other copies."""
    inputs = training.facts.text(f"{row}/inputs").split(", ")
    types = {text.partition(" ")[0] for text in inputs}
    return _first_shape(inputs[0]) if "fp32" in types and types & set(_HALVES) else ""


def find_slow_operators(training: Training) -> Cause | None:
    """Operators that attain far less than what their operations and bytes would allow."""
    facts = training.facts
    ranks, number = _rank_rows(training, "roofline")
    far: dict[str, list[tuple[float, str]]] = {}
    for row in facts.rows(f"{ranks[0]}/operators") if ranks else ():
        share, kernels = facts.number(f"{row}/share"), facts.amount(f"{row}/kernels")
        category = facts.text(f"{row}/category")
        attained = _ATTAINED_BY_ATTENTION if category == "attention" else _ATTAINED
        if share is None or share >= _FAR * attained or category not in _REMEDIES or not kernels:
            continue
        device_us = facts.amount(f"{row}/device_us")
        if device_us / kernels >= _SHORTEST_KERNEL_US:
            far.setdefault(facts.text(f"{row}/operator"), []).append((device_us * (1 - share / attained), row))
    if not far:
        return None
    operator = max(far, key=lambda name: sum(regained_us for regained_us, _ in far[name]))
    rows = [row for _, row in sorted(far[operator], reverse=True)]
    cost_us = sum(regained_us for regained_us, _ in far[operator])
    if cost_us < _SMALLEST_SHARE * (training.step_us or 0.0):
        return None
    whole_us = sum(facts.amount(f"{row}/device_us") for row in rows)
    most_us = sum(facts.amount(f"{row}/regain_us") for row in rows)
    evidence = [
        Evidence(
            f"`{operator}` takes {whole_us / US_PER_MS:.2f} ms of a step; its roofline allows "
            f"{(whole_us - most_us) / US_PER_MS:.2f} ms.",
            tuple(f"{row}/regain_us" for row in rows),
        )
    ]
    for row in rows[:_MOST_NAMED]:
        text = (
            f"{facts.amount(f'{row}/calls'):.0f} calls of {facts.text(f'{row}/inputs')} attain "
            f"{percent(facts.amount(f'{row}/share')):.0f} % of the {facts.text(f'{row}/bound')} bound."
        )
        evidence.append(Evidence(text, (f"{row}/share", f"{row}/bound", f"{row}/device_us")))
    remedies = _REMEDIES[facts.text(f"{rows[0]}/category")]
    advice = f"Try {offer(*((text, _TORCH_COMPILE in text and is_compiled(training)) for text in remedies))}."
    return Cause(
        cost_us, (cost_us / 2, most_us), (number,), tuple(evidence), advice, Confidence.MEDIUM, Basis.BOUND
    )  # fmt: skip


RULES: Rules = (
    Rule("unfused_norm", "Norms of many kernels", (Account.COMPUTE,), find_unfused_norms),
    Rule("unfused_loss", "Loss on logits in fp32", (Account.COMPUTE,), find_unfused_loss),
    Rule("slow_operator", "Operator far from its roofline", (Account.COMPUTE,), find_slow_operators),
)
