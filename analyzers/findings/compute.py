"""Rules about what the device computes, and its memory: data types, attention, norms, the optimizer, clocks."""

from __future__ import annotations

import re

from perfscope.analyzers.findings.finding import NOTABLE, Basis, Fault, Finder, Proof, fact
from perfscope.analyzers.findings.training import (
    POWER_CAP,
    StepPart,
    TracedRun,
    numbered,
)
from perfscope.constants import GB, US_PER_MS
from perfscope.models.conventions import Checkpointing
from perfscope.report import percent
from perfscope.tables.kernel_precision import SIXTEEN_BIT, is_fused_attention, product_precision

#: A softmax that is no part of a cross entropy, as torch's kernels state it: the fifth argument of their templates.
_SOFTMAX = re.compile(
    r"softmax_warp_(?:forward|backward)<[^<>]*?, \d+, false|cunn_SoftMax\w*<.*::SoftMax(?:Forward|Backward)|"
    r"scaled_\w*masked_softmax"
)
_ATTENTION = re.compile(r"fmha|flash|sdpa|attention")
_MASK = "masked_fill"
#: Positions by positions, of each head of each sample.
_MATRICES = re.compile(r"\w+ \d+x\d+x(\d{3,})x\1(?:,|$)")
#: At least this share of the time of fp32 products goes on GPUs whose tensor cores are 7 to 15 times faster.
_SLOW_PRODUCTS, _FASTEST_PRODUCTS = 0.75, 0.9
_TENSOR_CORES = re.compile(r"\b(?:V100|T4|A\d+|L4|L40S?|H\d+|GH200|B\d+|GB\d+|RTX)\b")
_LEAST_RECOMPUTED, _MOST_RECOMPUTED = 1 / 8, 1 / 4
_NORM = re.compile(r"norm\d*$|ln_?(?:\d+|f)$")
#: A norm by one operator launches one kernel forward, two or three backward, and maybe a sum of gradients.
_FUSED_KERNELS = 4.0


def find_padding(training: TracedRun) -> Fault | None:
    """Attention masks say that many positions hold padding, which is computed like any other."""
    setup = training.results.setup
    padded = [
        (row, rank.padding)
        for row, rank in numbered("/setup/ranks", setup.ranks if setup is not None else ())
        if rank.padding is not None and rank.padding.positions
    ]
    row, padding = max(padded, key=lambda entry: entry[1].padded / entry[1].positions, default=("", None))
    if padding is None or padding.padded < NOTABLE * padding.positions:
        return None
    share = padding.padded / padding.positions
    evidence = fact(
        f"{percent(share):.0f} % of the positions in {padding.batches} batches are padding.",
        f"{row}/padding",
        "padded positions",
    )
    advice = training.advise("padding")
    cost_us = share * training.compute_us
    return Fault(cost_us, (cost_us / 2, cost_us), (), (evidence,), advice, Basis.BOUND)


def find_unfused_optimizer(training: TracedRun) -> Fault | None:
    """The optimizer launches a kernel for every operation, or even for every parameter and operation."""
    results, stated = training.results, training.setup.optimizer if training.setup is not None else None
    ranks = numbered("/optimizer/ranks", results.optimizer.ranks if results.optimizer is not None else ())
    row, step = max(
        (entry for entry in ranks if entry[1].way in {"foreach", "loop"}),
        key=lambda entry: entry[1].device_us,
        default=("", None),
    )
    if step is None or (stated is not None and stated.fused):
        return None
    # The profiler slows the host, so that gaps are longer than they would be.
    waits_us = next((rank.waits_for_host for rank in training.ranks if rank.rank == step.rank), 0.0)
    # One pass over parameters, gradients and states saves more than half of one that makes a pass an operation.
    low_us, idle_us = 0.55 * step.device_us, min(step.idle_us, waits_us)
    evidence = fact(
        f"{step.name} launches {step.kernels:.0f} kernels a step ({step.way}), which take "
        f"{step.device_us / US_PER_MS:.2f} ms, with gaps of {idle_us / US_PER_MS:.2f} ms.",
        row,
        "way kernels device_us idle_us",
    )
    if stated is not None and not stated.has_fused and stated.name == step.name:
        foreach = "" if step.way == "foreach" else ", or `foreach=True`"
        advice = f"{step.name} has no option `fused`; try `torch.compile` of its `step`{foreach}."
    else:
        advice = training.advise("unfused_optimizer", name=step.name)
    cost_us = low_us + idle_us
    return Fault(cost_us, (low_us, cost_us), (), (evidence,), advice, basis=Basis.BOUND)


def find_fp32_products(training: TracedRun) -> Fault | None:
    """Matrix products in fp32 without tensor cores, by the names of their kernels."""
    if training.gpus and not _TENSOR_CORES.search(training.gpus[0][1].name):
        return None
    kernels = training.kernels("compute")
    precisions = {product_precision(kernel.name) for _, kernel in kernels}
    # What a fused attention in fp32 multiplies with, its name does not say.
    products = [
        (row, kernel)
        for row, kernel in kernels
        if product_precision(kernel.name) == "fp32" and not _ATTENTION.search(kernel.name)
    ]
    product_us = training.kernel_us(products)
    if not product_us:
        return None
    evidence = Proof(
        f"A step multiplies in fp32 for {product_us / US_PER_MS:.2f} ms, without tensor cores.",
        tuple(f"/results{row}/total_us" for row, _ in products[:3]),
    )
    is_mixed = bool(precisions & {"bf16", "fp16", SIXTEEN_BIT})
    advice = training.advise("fp32_products_beside_16_bits" if is_mixed else "fp32_products")
    interval = _SLOW_PRODUCTS * product_us, _FASTEST_PRODUCTS * product_us
    return Fault(interval[0], interval, (), (evidence,), advice, basis=Basis.BOUND)


def find_eager_attention(training: TracedRun) -> Fault | None:
    """Attention writes its matrix: a softmax that is no part of the loss runs as a kernel of its own."""
    kernels, roofline = training.kernels("compute"), training.results.roofline
    softmax = [(row, kernel) for row, kernel in kernels if _SOFTMAX.search(kernel.name)]
    softmax_us = training.kernel_us(softmax)
    if not softmax_us:
        return None
    operators = roofline.ranks[0].operators if roofline is not None and roofline.ranks else ()
    written = [  # where the roofline knows shapes
        (row, operator)
        for row, operator in numbered("/roofline/ranks/0/operators", operators)
        if _MATRICES.match(operator.inputs or "") and operator.category != "matrix product"
    ]
    if not written and any(is_fused_attention(kernel.name) for _, kernel in kernels):
        return None  # of a router, or of another loss: attention itself is fused already
    masks = training.kernels("compute", _MASK)
    least_us = softmax_us + training.kernel_us(masks)
    most_us = max(4 * softmax_us, least_us)  # scaling, a copy and a product go over the matrix, too
    evidence = [
        Proof(
            f"Softmax and masks of attention take {least_us / US_PER_MS:.2f} ms of a step in kernels of their own.",
            tuple(f"/results{row}/name" for row, _ in (*softmax[:2], *masks[:1])),
        )
    ]
    if written:
        # The shapes tell what else goes over the matrix: scaling, casts, dropout.
        least_us = most_us = max(sum(operator.device_us for _, operator in written), least_us)
        text = f"All operators that read or write the matrix of each head take {most_us / US_PER_MS:.2f} ms."
        evidence.append(Proof(text, tuple(f"/results{row}/device_us" for row, _ in written)))
    advice = training.advise("eager_attention")
    cost_us = (least_us + most_us) / 2
    return Fault(cost_us, (least_us, most_us), (), tuple(evidence), advice, Basis.BOUND)


def find_unfused_norms(training: TracedRun) -> Fault | None:
    """Norms that are written operator by operator: each operator reads and writes all states again."""
    tree = training.results.modules
    rank = next(iter(tree.ranks), None) if tree is not None else None
    if rank is None:
        return None
    norms = [
        (row, norm, norm.self_kernels / norm.calls)
        for row, norm in numbered("/modules/ranks/0/modules", rank.modules)
        if norm.calls and norm.self_kernels > _FUSED_KERNELS * norm.calls and _NORM.search(norm.path.lower())
    ]
    if not norms:
        return None
    whole_us = sum(norm.self_us for _, norm, _ in norms)
    cost_us = sum(norm.self_us * (1 - _FUSED_KERNELS / kernels) for _, norm, kernels in norms)
    row, norm, kernels = max(norms, key=lambda entry: entry[1].self_us)
    evidence = fact(
        f"{len(norms)} norms, such as `{norm.path}`, launch {kernels:.0f} kernels each, and take "
        f"{whole_us / US_PER_MS:.2f} ms of a step.",
        row,
        "path self_kernels self_us",
    )
    advice = f"{training.advise('unfused_norm', *training.in_use)}."
    return Fault(cost_us, (cost_us / 2, whole_us), (rank.rank,), (evidence,), advice, Basis.BOUND)


def find_recomputation(training: TracedRun) -> Fault | None:
    """Activations are recomputed although most of the memory is free."""
    mfu, operations, used = training.results.mfu, training.results.operations, training.used_memory
    shares = [] if mfu is None else [("/mfu", mfu.recomputed_share or 0.0, mfu.checkpointing)]
    shares += [
        (row, rank.recomputed_share or 0.0, rank.recomputed)
        for row, rank in numbered("/operations/ranks", operations.ranks if operations is not None else ())
    ]
    row, share, checkpointing = max(shares, key=lambda entry: entry[1], default=("", 0.0, None))
    if not share or used is None or 2 * used[0] > 1:
        return None
    low, high = (part * share * training.compute_us for part in (_LEAST_RECOMPUTED, _MOST_RECOMPUTED))
    text = f"{percent(share):.0f} % of the forward pass's products run again in the backward pass."
    evidence = (
        fact(text, row, "recomputed_share"),
        Proof(f"{percent(1 - used[0]):.0f} % of the GPU's memory is never used by tensors.", used[1]),
    )
    advice = training.advise(f"recomputation_{'selective' if checkpointing == Checkpointing.SELECTIVE else 'full'}")
    return Fault((low + high) / 2, (low, high), (), evidence, advice, Basis.BOUND)


def find_throttling(training: TracedRun) -> Fault | None:
    """GPUs that are too hot, braked, or limited to less power than their own limit.

    A GPU that reaches its own power limit while it multiplies is as fast as it can be.
    """
    throttling = training.results.throttling
    causes: list[Fault] = []
    for row, entry in numbered("/throttling", throttling.gpus if throttling is not None else ()):
        place, gpu = next((found for found in training.gpus if found[1].uuid == entry.uuid), ("", None))
        if gpu is None:
            continue
        limit_w, own_w, highest = gpu.power_limit_w or 0.0, gpu.power_limit_default_w or 0.0, gpu.sm_clock_max_mhz
        is_limited = bool(limit_w) and limit_w < own_w
        reasons = [
            (cause, cause_row)
            for cause_row, cause in numbered(f"{row}/causes", entry.causes)
            if len(cause.steps) >= NOTABLE * entry.known_steps and (cause.cause != POWER_CAP or is_limited)
        ]
        if not reasons or not entry.hit_mhz or not highest or entry.hit_mhz >= highest:
            continue
        share = len(entry.steps) / entry.known_steps
        cost_us = training.compute_us * (1 - entry.hit_mhz / highest) * share
        evidence = Proof(
            f"{entry.name} runs at {entry.hit_mhz:.0f} of {highest:.0f} MHz in {percent(share):.0f} % of the steps: "
            f"{', '.join(cause.cause for cause, _ in reasons)}.",
            (
                f"/results{row}/hit_mhz",
                f"/results{place}/sm_clock_max_mhz",
                *(f"/results{cause_row}/steps" for _, cause_row in reasons),
            ),
        )
        advice = "Look at the machine's cooling and power supply: `nvidia-smi -q -d TEMPERATURE,POWER,PERFORMANCE`."
        if is_limited:
            own = f"{own_w:.0f} W: try `nvidia-smi -pl {own_w:.0f}`"
            advice = f"The power limit is {limit_w:.0f} W, and the GPU's own {own}."
        causes.append(Fault(cost_us, (0.0, cost_us), entry.ranks, (evidence,), advice, Basis.BOUND))
    return max(causes, key=lambda cause: cause.cost_us, default=None)


def find_full_memory(training: TracedRun) -> Fault | None:
    """The fullest GPU is short of memory: what lowers the peak, or pieces that no tensor fits into."""
    memory = training.results.memory
    used = [
        ((peak.reserved_bytes + (peak.outside_bytes or 0) + (peak.request_bytes or 0)) / peak.device_bytes, row, peak)
        for row, peak in numbered("/memory/devices", memory.devices if memory is not None else ())
        if peak.device_bytes
    ]
    share, row, peak = max(used, key=lambda entry: entry[0], default=(0.0, "", None))
    if peak is None or share <= 1 - NOTABLE:
        return None
    if peak.unused_bytes >= NOTABLE * (peak.device_bytes or 0):
        saved = peak.unused_bytes
        evidence = [
            fact(
                f"The allocator holds {peak.reserved_bytes / GB:.2f} GB at the peak, of which {saved / GB:.2f} GB hold "
                "no tensor.",
                row,
                "reserved_bytes unused_bytes device_bytes",
            )
        ]
        advice = f"Try {training.advise('fragmented_memory', *training.in_use)}"
    elif peak.savings:
        saving = peak.savings[0]
        saved, whole = round(saving.saved_bytes), (peak.device_bytes or 0) / GB
        text = f"Tensors take {peak.peak_bytes / GB:.2f} GB at the peak, of {whole:.2f} GB of the GPU."
        of_peak = percent(saving.saved_bytes / peak.peak_bytes)
        less = f"{saving.saved_bytes / GB:.2f} GB ({of_peak:.0f} %) less: {saving.change}; its price: {saving.price}."
        evidence = [
            fact(text, row, "peak_bytes device_bytes"),
            fact(less, f"{row}/savings/0", "saved_bytes change price"),
        ]
        advice = f"{saving.change[:1].upper()}{saving.change[1:]}."
    else:
        return None
    return Fault(0.0, (0.0, 0.0), (peak.rank,), tuple(evidence), advice, Basis.BOUND, saved_bytes=saved)


RULES = (
    Finder("padding", "Padding", (StepPart.COMPUTE,), find_padding),
    Finder("unfused_optimizer", "Unfused optimizer", (StepPart.COMPUTE, StepPart.HOST), find_unfused_optimizer),
    Finder("fp32_products", "Products in fp32", (StepPart.COMPUTE,), find_fp32_products),
    Finder("eager_attention", "Eager attention", (StepPart.COMPUTE,), find_eager_attention),
    Finder("unfused_norm", "Norms of many kernels", (StepPart.COMPUTE,), find_unfused_norms),
    Finder("recomputation", "Recomputation that memory does not need", (StepPart.COMPUTE,), find_recomputation),
    Finder("throttling", "Throttled GPU", (StepPart.COMPUTE,), find_throttling),
    Finder("full_memory", "Memory nearly full", (StepPart.OUTSIDE,), find_full_memory),
)
