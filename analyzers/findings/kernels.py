"""Findings about what the device computes: its type, attention, recomputation, and the optimizer."""

from __future__ import annotations

import re

from perfscope.analyzers.findings.facts import Evidence
from perfscope.analyzers.findings.finding import Account, Basis, Cause, Confidence, Rule, Rules
from perfscope.analyzers.findings.in_use import has_fused_attention, multiplies_halves
from perfscope.analyzers.findings.memory import free_memory
from perfscope.analyzers.findings.options import DEEPSPEED, LIGHTNING, MEGATRON, TORCH, TRAINER, option
from perfscope.analyzers.findings.training import Training
from perfscope.constants import US_PER_MS
from perfscope.report import percent
from perfscope.tables.kernel_precision import product_precision

#: A softmax that is no part of a cross entropy, as torch's kernels state it: the fifth argument of their templates.
_SOFTMAX = re.compile(
    r"softmax_warp_(?:forward|backward)<[^<>]*?, \d+, false|cunn_SoftMax\w*<.*::SoftMax(?:Forward|Backward)|"
    r"scaled_\w*masked_softmax"
)
_OF_FP32 = re.compile(r"softmax\w*<(?:\d+, )?float, float", re.IGNORECASE)
_ATTENTION = re.compile(r"fmha|flash|sdpa|attention")
_MASK = re.compile(r"masked_fill")
#: Positions by positions, of each head of each sample.
_MATRICES = re.compile(r"\w+ \d+x\d+x(\d{3,})x\1(?:,|$)")
#: Besides its softmax and mask, attention that writes its matrix scales, copies and multiplies it.
_WHOLE_ATTENTION = 4.0
#: At least this share of the time of fp32 products goes on GPUs whose tensor cores are 7 to 15 times faster.
_SLOW_PRODUCTS = 0.75
_FASTEST_PRODUCTS = 0.9
_TENSOR_CORES = re.compile(r"\b(?:V100|T4|A\d+|L4|L40S?|H\d+|GH200|B\d+|GB\d+|RTX)\b")
#: What one pass over parameters, gradients and states saves of an optimizer that makes a pass an operation.
_PASSES = 0.55
_FREE = 0.5
_LEAST_RECOMPUTED, _MOST_RECOMPUTED = 1 / 8, 1 / 4


def find_fp32_products(training: Training) -> Cause | None:
    """Matrix products in fp32 without tensor cores, by the names of their kernels."""
    facts = training.facts
    gpu = facts.text("/gpus/0/name") or facts.text("/mfu/device")
    if gpu and not _TENSOR_CORES.search(gpu):
        return None
    names = {row: facts.text(f"{row}/name") for row in _computing(training)}
    # What a fused attention in fp32 multiplies with, its name does not say.
    rows = [row for row, name in names.items() if product_precision(name) == "fp32" and not _ATTENTION.search(name)]
    product_us = training.kernel_us(rows)
    if not product_us:
        return None
    evidence = Evidence(
        f"A step multiplies in fp32 for {product_us / US_PER_MS:.2f} ms, without tensor cores.",
        tuple(f"{row}/total_us" for row in rows[:3]),
    )
    tf32 = '`torch.set_float32_matmul_precision("high")` (TF32).'
    if multiplies_halves(training):
        advice = "The other products are in 16 bits already; for these try " + option(
            training, {TRAINER: "`tf32=True` of TrainingArguments.", TORCH: tf32}
        )
    else:
        advice = "Try " + option(
            training,
            {
                TRAINER: "`bf16=True`, or `tf32=True`, of TrainingArguments.",
                LIGHTNING: f'`precision="bf16-mixed"` of the Trainer, or {tf32}',
                DEEPSPEED: '`"bf16": {"enabled": true}`.',
                MEGATRON: "`--bf16`.",
                TORCH: f'`torch.autocast("cuda", torch.bfloat16)`, or {tf32}',
            },
        )
    interval = _SLOW_PRODUCTS * product_us, _FASTEST_PRODUCTS * product_us
    return Cause(interval[0], interval, (), (evidence,), advice, basis=Basis.BOUND)


def _computing(training: Training) -> list[str]:
    """The kernels that compute."""
    facts = training.facts
    return [row for row in facts.rows("/kernels/names") if facts.text(f"{row}/work") == "compute"]


def find_eager_attention(training: Training) -> Cause | None:
    """Attention writes its matrix: a softmax that is no part of the loss runs as a kernel of its own."""
    facts = training.facts
    rows = [row for row in _computing(training) if _SOFTMAX.search(facts.text(f"{row}/name"))]
    softmax_us = training.kernel_us(rows)
    if not softmax_us:
        return None
    written = _passes_over_matrices(training)
    if has_fused_attention(training) and not written:
        return None  # of a router, or of another loss: attention itself is fused already
    masks = [row for row in _computing(training) if _MASK.search(facts.text(f"{row}/name"))]
    least_us = softmax_us + training.kernel_us(masks)
    most_us = max(_WHOLE_ATTENTION * softmax_us, least_us)
    evidence = [
        Evidence(
            f"Softmax and masks of attention take {least_us / US_PER_MS:.2f} ms of a step in kernels of their own.",
            tuple(f"{row}/name" for row in (*rows[:2], *masks[:1])),
        )
    ]
    if written:
        # The shapes tell what else goes over the matrix: scaling, casts, dropout.
        least_us = most_us = max(sum(facts.amount(f"{row}/device_us") for row in written), least_us)
        text = f"All operators that read or write the matrix of each head take {most_us / US_PER_MS:.2f} ms."
        evidence.append(Evidence(text, tuple(f"{row}/device_us" for row in written)))
    advice = "Try " + option(
        training,
        {
            TRAINER: '`attn_implementation="sdpa"` or `"flash_attention_2"` in `from_pretrained`.',
            MEGATRON: "`--attention-backend flash` or `--use-flash-attn`.",
            TORCH: "`torch.nn.functional.scaled_dot_product_attention`, with `is_causal=True` in place of a mask.",
        },
    )
    if all(_OF_FP32.search(facts.text(f"{row}/name")) for row in rows):
        advice += " In fp32 it has no flash kernel: queries, keys and values must be bf16 or fp16."
    return Cause(
        (least_us + most_us) / 2, (least_us, most_us), (), tuple(evidence), advice, Confidence.MEDIUM, Basis.BOUND
    )  # fmt: skip


def _passes_over_matrices(training: Training) -> list[str]:
    """The operators that go over the matrices of attention, where the roofline knows shapes; no products."""
    facts = training.facts
    ranks = facts.rows("/roofline/ranks")
    operators = facts.rows(f"{ranks[0]}/operators") if ranks else []
    return [
        row
        for row in operators
        if _MATRICES.match(facts.text(f"{row}/inputs")) and facts.text(f"{row}/category") != "matrix product"
    ]


def find_recomputation(training: Training) -> Cause | None:
    """Activations are recomputed although most of the memory is free."""
    facts = training.facts
    pointers = {"/mfu/recomputed_share": "/mfu/checkpointing"}
    pointers |= {f"{row}/recomputed_share": f"{row}/recomputed" for row in facts.rows("/operations/ranks")}
    pointer = max(pointers, key=facts.amount)
    share, memory = facts.amount(pointer), free_memory(training)
    if not share or memory is None or memory.free < _FREE:
        return None
    compute_us = max((rank.compute for rank in training.ranks), default=0.0)
    low, high = share * _LEAST_RECOMPUTED * compute_us, share * _MOST_RECOMPUTED * compute_us
    evidence = (
        Evidence(f"{percent(share):.0f} % of the forward pass's products run again in the backward pass.", (pointer,)),
        Evidence(f"{percent(memory.free):.0f} % of the GPU's memory is never used by tensors.", memory.pointers),
    )
    is_selective = facts.text(pointers[pointer]) == "selective"
    advice = "Recompute fewer layers, as far as memory allows: " + option(
        training,
        {
            TRAINER: "`gradient_checkpointing=False` of TrainingArguments.",
            MEGATRON: "no `--recompute-granularity`."
            if is_selective
            else "`--recompute-granularity selective`, or a smaller `--recompute-num-layers`.",
            TORCH: "a policy that saves more of the operations, or no `torch.utils.checkpoint.checkpoint`."
            if is_selective
            else "`torch.utils.checkpoint.checkpoint` around some of the blocks, or around none.",
        },
    )
    return Cause((low + high) / 2, (low, high), (), evidence, advice, Confidence.MEDIUM, Basis.BOUND)


def find_unfused_optimizer(training: Training) -> Cause | None:
    """The optimizer launches a kernel for every operation, or even for every parameter and operation."""
    facts = training.facts
    rows = [row for row in facts.rows("/optimizer/ranks") if facts.text(f"{row}/way") in {"foreach", "loop"}]
    stated = "/setup/ranks/0/optimizer"
    if not rows or facts.is_true(f"{stated}/fused"):
        return None
    row = max(rows, key=lambda row: facts.amount(f"{row}/device_us"))
    device_us, idle_us = facts.amount(f"{row}/device_us"), facts.amount(f"{row}/idle_us")
    kernels = facts.amount(f"{row}/kernels")
    rank = next((rank for rank in training.ranks if rank.rank == facts.rank(row)), None)
    # The profiler slows the host, so that gaps are longer than they would be.
    idle_us = min(idle_us, rank.waits_for_host) if rank is not None else 0.0
    low = _PASSES * device_us
    name = facts.text(f"{row}/name")
    evidence = Evidence(
        f"{name} launches {kernels:.0f} kernels a step ({facts.text(f'{row}/way')}), which take "
        f"{device_us / US_PER_MS:.2f} ms, with gaps of {idle_us / US_PER_MS:.2f} ms.",
        (f"{row}/way", f"{row}/kernels", f"{row}/device_us", f"{row}/idle_us"),
    )
    if facts.value(f"{stated}/has_fused") is False and facts.text(f"{stated}/name") == name:
        advice = f"{name} has no option `fused`; try `torch.compile` of its `step`, or `foreach=True`."
        if facts.text(f"{row}/way") == "foreach":
            advice = f"{name} has no option `fused`; try `torch.compile` of its `step`."
    else:
        advice = _fused_advice(training, name)
    return Cause(low + idle_us, (low, low + idle_us), (), (evidence,), advice, basis=Basis.BOUND)


def _fused_advice(training: Training, name: str) -> str:
    return "Try " + option(
        training,
        {
            TRAINER: '`optim="adamw_torch_fused"` of TrainingArguments.',
            DEEPSPEED: '`"torch_adam": false` in the optimizer\'s `params`, which takes FusedAdam.',
            TORCH: f"`torch.optim.{name}(..., fused=True)`.",
        },
    )


RULES: Rules = (
    Rule("unfused_optimizer", "Unfused optimizer", (Account.COMPUTE, Account.HOST), find_unfused_optimizer),
    Rule("fp32_products", "Products in fp32", (Account.COMPUTE,), find_fp32_products),
    Rule("eager_attention", "Eager attention", (Account.COMPUTE,), find_eager_attention),
    Rule("recomputation", "Recomputation that memory does not need", (Account.COMPUTE,), find_recomputation),
)
