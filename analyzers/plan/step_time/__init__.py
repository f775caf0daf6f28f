"""How long one step of a training takes, term by term, without a run.

A pipeline's slowest stage works through all micro-batches; the others add the bubble (Narayanan et al. 2021, arXiv
2104.04473, section 2.2). A layer's pass takes its matrix products by size, attention, what memory limits, and the
collectives of tensor parallelism (Korthikanti et al. 2022, arXiv 2205.05198); never less than the host needs to launch
it. Collectives send by the ring's bytes over the slowest link that their ranks span. What is shared over replicas hides
behind the computation as far as the stack overlaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, sqrt
from types import SimpleNamespace

import numpy as np

from perfscope.analyzers.plan import LAST_STAGE, balance_stages
from perfscope.constants import GIGA, NS_PER_S, TERA
from perfscope.models.conventions import FORWARD, FORWARD_AND_BACKWARD, Checkpointing
from perfscope.models.hardware import find_gpu
from perfscope.models.parameter_counts import activated_width, embedding_parameters, expert_split, layer_weights
from perfscope.models.step_constants import StepConstants, find_node, step_counts
from perfscope.tables.columns import Float64, Int64
from perfscope.tables.step_time import NANOTRON, StepSetup, StepTerms

#: The terms of a step, in the order of ``Predictor.terms_ns``.
TERMS = (
    "matrix products",
    "recomputation",
    "attention",
    "memory-bound operators",
    "output layer and loss",
    "tensor-parallel communication",
    "context-parallel communication",
    "expert-parallel communication",
    "host",
    "pipeline bubble",
    "pipeline communication",
    "sharded weights and gradients",
    "gradients",
    "copied weights and gradients",
    "optimizer",
    "step",
)
COMMUNICATION = tuple(
    TERMS.index(name)
    for name in TERMS
    if "communication" in name or (name.endswith("gradients") and "copied" not in name)
)
PRODUCTS, BUBBLE = TERMS.index("matrix products"), TERMS.index("pipeline bubble")
_BYTES = 2  # of an activation or weight in 16 bits, for which the counts are
_FORWARD_AND_BACKWARD = FORWARD_AND_BACKWARD // FORWARD
_BUCKET_BYTES = 25e6  # that PyTorch's DDP reduces at once


class Predictor:
    """Predicts the steps of some configurations, at least one, for any constants."""

    def __init__(self, setups: Sequence[StepSetup]) -> None:
        """Take the dimensions of the configurations; UsageError where a GPU is unknown or lacks the data type."""
        rows = [_list_numbers(setup) for setup in setups]
        self._columns = SimpleNamespace(**{name: np.array([row[name] for row in rows], np.float64) for name in rows[0]})

    def seconds(self, constants: StepConstants) -> tuple[Float64, Float64]:
        """The time of each step, and that of the kernels of ``StepTerms``, shape (kinds, configurations)."""
        terms, kernels = _predict(self._columns, constants)
        return np.asarray(terms.sum(axis=0), np.float64), kernels

    def terms_ns(self, constants: StepConstants) -> Int64:
        """Nanoseconds of each term, shape (terms, configurations); their sums are the steps."""
        return np.rint(_predict(self._columns, constants)[0] * NS_PER_S).astype(np.int64)


def _list_numbers(setup: StepSetup) -> dict[str, float]:
    """What the terms are computed from, of one configuration."""
    model, gpu = setup.model, find_gpu(setup.gpu)
    node = find_node(gpu)
    link_gb_s = gpu.link.gb_s if gpu.link else node.network_gb_s
    experts = model.experts
    active = experts.active if experts else 0
    seen = model.full_layers * setup.seq_len + sum(
        mixer.layers * min(mixer.window, setup.seq_len) for mixer in model.mixers
    )
    full, selective = (setup.checkpointing is kind for kind in (Checkpointing.FULL, Checkpointing.SELECTIVE))
    operations = selective and not setup.is_eager  # no attention matrix to recompute: torchtitan's `op`
    split = expert_split(setup.tensor, setup.expert)
    stage_shared, stage_routed = _stage_parameters(setup, split)
    most, last = _list_layers(setup)
    is_spread = setup.tensor > 1 and setup.pipeline > 1 and setup.gpus > node.gpus
    replicas = setup.data * setup.context
    expert_replicas = replicas * setup.tensor / split
    stepped = stage_shared / replicas + stage_routed / expert_replicas if setup.zero else stage_shared + stage_routed
    return {
        "tokens": setup.micro_batch * setup.seq_len / setup.context,
        "micro_batches": setup.micro_batches,
        "span": seen / model.layers,  # earlier tokens that attention sees, twice as many as are not masked
        "layers": model.layers,
        "most_layers": most,
        "last_layers": last,
        "spread_tensor": is_spread * setup.tensor * sqrt(max(1, setup.tensor / node.gpus)),  # as published rows do
        "hidden": model.hidden,
        "heads": model.heads,
        "head_dims": model.query_dim + model.value_dim,
        "kv_dim": (model.heads if model.latent else model.kv_heads) * model.head_dim,
        "activated": activated_width(model) / model.layers * (model.mlp_matrices - 1),
        "shared_weights": layer_weights(model, 0) / model.layers,
        "routed_weights": (layer_weights(model, active) - layer_weights(model, 0)) / model.layers,
        "routed_fraction": experts.active * split / (setup.tensor * experts.routed) if experts else 1,
        "active_experts": active,
        "expert_layers": model.expert_layers / model.layers,
        "stage_shared": stage_shared,
        "stage_routed": stage_routed,
        "stepped_parameters": stepped,
        "logits": model.vocabulary,
        "tensor": setup.tensor,
        "sequence_split": setup.tensor if setup.sequence_parallel else 1,
        "pipeline": setup.pipeline,
        "virtual": setup.virtual,
        "data": setup.data,
        "context": setup.context,
        "expert": setup.expert,
        "expert_split": split,
        "replicas": replicas,
        "expert_replicas": expert_replicas,
        "zero": setup.zero,
        "reduces_all": setup.software == NANOTRON,
        "recomputes": full,
        "recomputes_operators": full or operations,
        "recomputes_products": step_counts()["selective_products"] if operations else full,
        "recomputes_attention": full or (selective and setup.is_eager),
        "is_eager": setup.is_eager,
        "is_fp8": "fp8" in setup.dtype or "fp4" in setup.dtype,
        "trained": model.trained,
        "gradient_bytes": setup.gradient_bytes,
        "products_flops": gpu.peak_tflops(setup.dtype) * TERA,
        "flops": min(gpu.dense_16bit_tflops, gpu.peak_tflops(setup.dtype)) * TERA,
        "width": 2 if setup.dtype in ("fp32", "tf32") else 1,
        "memory_bytes": (gpu.memory_tb_s or 1.0) * TERA,
        "link_bytes": link_gb_s * GIGA,
        "network_bytes": (setup.network_gb_s or node.network_gb_s) * GIGA,
        "node_gpus": node.gpus,
    }


def _list_layers(setup: StepSetup) -> tuple[int, int]:
    """The layers of the fullest stage and of the one with the output layer, which has one less if they differ."""
    if setup.software == NANOTRON:
        layers, output = balance_stages(setup.model, setup.pipeline)
        return max(layers), layers[output]
    most = ceil(setup.model.layers / setup.pipeline)
    return most, most - (setup.model.layers % setup.pipeline > 0)


def _stage_parameters(setup: StepSetup, split: int) -> tuple[float, float]:
    """Parameters of one GPU of the stage with the output layer, before ZeRO; and those of its routed experts."""
    model = setup.model
    tables = embedding_parameters(model) * (1 if model.tied or setup.pipeline > 1 else 2)
    routed = 0
    if model.experts:
        routed = layer_weights(model, model.experts.routed) - layer_weights(model, 0)
    stage = -(-model.layers // setup.pipeline) / model.layers
    return (layer_weights(model, 0) * stage + tables) / setup.tensor, routed * stage / split


def _collective(c: SimpleNamespace, k: StepConstants, size: Float64, ranks: Float64, stride: Float64) -> Float64:
    """Seconds of an all-gather or a reduce-scatter of ``size`` bytes; ``stride`` ranks lie between its neighbours."""
    inside = np.clip(c.node_gpus / stride, 1, ranks)
    leaves = ranks > inside
    link = c.link_bytes * k.link
    rate = np.where(leaves, np.minimum(inside * c.network_bytes * k.network, link), link)
    latency = np.where(leaves, k.network_latency_s, k.link_latency_s) * np.log2(ranks)
    return np.asarray((ranks - 1) / ranks * size / rate + latency, np.float64)


def _exchange(c: SimpleNamespace, k: StepConstants, size: Float64 | float) -> Float64:
    """Seconds in which replicas gather or reduce ``size`` bytes of each parameter; experts have fewer replicas."""
    experts = _collective(c, k, size * c.stage_routed, c.expert_replicas, c.expert_split)
    shared = _collective(c, k, size * c.stage_shared, c.replicas, c.tensor)
    buckets = size * c.stage_shared / _BUCKET_BYTES * k.bucket_latency_s * (c.replicas - 1)
    return np.asarray(shared + (c.stage_routed > 0) * experts + buckets, np.float64)


def _dispatch(c: SimpleNamespace, k: StepConstants, size: Float64) -> Float64:
    """Seconds to send ``size`` bytes of tokens to their experts: once to each rank, and to each node, that has some.

    What leaves the node takes the rank's own adapter (DeepSeek-V3, arXiv 2412.19437, section 3.2.2).
    """
    inside = np.minimum(c.node_gpus, c.expert)
    nodes = c.expert / inside

    def to_others(places: Float64) -> Float64:
        return np.asarray((places - 1) * (1 - (1 - 1 / places) ** c.active_experts), np.float64)

    within = to_others(c.expert) * (inside - 1) / np.maximum(c.expert - 1, 1) * size / (c.link_bytes * k.link)
    across = to_others(nodes) * size / (c.network_bytes * k.network)
    latency = np.where(nodes > 1, k.network_latency_s, k.link_latency_s) * np.log2(c.expert)
    return np.asarray(np.maximum(within, across) + latency, np.float64)


def _share_weights(c: SimpleNamespace, k: StepConstants) -> tuple[Float64, Float64]:
    """Seconds in which weights and gradients travel between replicas: for each micro-batch, and once a step.

    ZeRO 2 reduces gradients of each micro-batch, ZeRO 3 also gathers weights twice. With ZeRO 1 nanotron reduces all
    gradients for all replicas (``training_step`` in src/nanotron/trainer.py).
    """
    stage, full = _exchange(c, k, _BYTES), _exchange(c, k, c.gradient_bytes * c.trained)
    zero = c.zero.astype(int)
    each = np.choose(zero, [0 * stage, 0 * stage, stage, 3 * stage])
    return each, np.choose(zero, [2 * full, (1 + c.reduces_all) * full + stage, stage, 0 * stage])


def _hop(c: SimpleNamespace, k: StepConstants, states: Float64) -> Float64:
    """Seconds between stages: there and back while the pipeline fills; interleaving repeats it."""
    leaves = c.tensor * c.context * c.data >= c.node_gpus
    rate = np.where(leaves, c.network_bytes * k.network, c.link_bytes * k.link)
    repeated = c.micro_batches * (c.virtual - 1) * (1 - k.overlap) * (c.pipeline > 1)
    return np.asarray(2 * (c.pipeline - 1 + repeated) * states / c.sequence_split / rate, np.float64)


def _longer(device: Float64, host: Float64 | float) -> Float64:
    """What kernels and their launching take together: where they are near to each other, more than either."""
    sharpness = step_counts()["sharpness"]
    return np.asarray((device**sharpness + host**sharpness) ** (1 / sharpness), np.float64)


def _predict(c: SimpleNamespace, k: StepConstants) -> tuple[Float64, Float64]:
    """Seconds of each term, shape (terms, configurations), and of each kind of kernel on the mean stage."""
    flops = np.where(c.is_fp8 > 0, k.fp8_products, k.products) * c.products_flops
    memory = c.memory_bytes * k.memory / c.width
    counts = step_counts()

    def multiply(weights: Float64, share: Float64 | float = 1.0) -> Float64:
        """One pass of products with weights; each weight meets a share of the tokens."""
        return np.asarray(2 * weights * (c.tokens + k.small_tokens / share) / c.tensor / flops, np.float64)

    products = multiply(c.shared_weights) + multiply(c.routed_weights, c.routed_fraction)
    scores = 2 * c.tokens * c.span * c.head_dims / c.tensor
    score_products = c.is_eager * scores / flops
    softmax = c.is_eager * counts["score_bytes"] * c.tokens * c.span * c.heads / c.tensor / memory
    flash = (1 - c.is_eager) * scores / 2 / (c.flops * k.flash)
    attention = score_products + softmax + flash
    hidden_bytes = counts["hidden_bytes"] + counts["expert_bytes"] * c.active_experts * c.expert_layers
    operators = hidden_bytes * c.hidden / c.sequence_split + counts["activation_bytes"] * c.activated / c.tensor
    operators = c.tokens * operators / memory
    states = _BYTES * c.width * c.tokens * c.hidden
    within = 2 * (4 + 2 * c.recomputes) * _collective(c, k, states, c.tensor, np.ones_like(c.tensor))  # two halves each
    keys = (
        2
        * _FORWARD_AND_BACKWARD
        * _collective(c, k, _BYTES * c.width * 2 * c.tokens * c.context * c.kv_dim, c.context, c.tensor)
    )
    routing = 2 * (_FORWARD_AND_BACKWARD + c.recomputes) * c.expert_layers
    routing = routing * (c.expert > 1) * _dispatch(c, k, states / c.sequence_split)

    passes, product_passes = _FORWARD_AND_BACKWARD, _FORWARD_AND_BACKWARD - 1 + c.trained
    attention_passes = np.where(c.is_eager > 0, _FORWARD_AND_BACKWARD, counts["flash_passes"])
    again = c.recomputes_products * products + c.recomputes_operators * operators + c.recomputes_attention * attention
    across = np.maximum(keys - attention_passes * attention, 0)  # keys and values travel while attention is computed
    device = product_passes * products + passes * operators + attention_passes * attention + again
    device = device + within + across + routing
    launching = k.host_s * (passes + c.recomputes_operators) + k.gather_host_s * (c.zero >= LAST_STAGE)
    launching = launching + k.pipeline_host_s * c.spread_tensor
    launching_head = passes * counts["head_launches"] * k.host_s
    layer = _longer(device, launching)
    head_products = passes * multiply(c.logits * c.hidden)
    loss = passes * c.tokens * c.logits / c.tensor * counts["logit_bytes"] / memory
    head = _longer(head_products + loss, launching_head)
    layers = c.last_layers  # of the stage with the output layer, for which all others wait
    ahead = np.maximum((c.most_layers - layers) * layer - head, 0)  # of what the fullest stage takes for more layers
    streaming = c.memory_bytes * k.optimizer
    weights = (c.stage_shared + c.stage_routed) * k.weight_bytes / streaming
    slot = layers * layer + head + ahead + weights
    each, once = (np.maximum(travels - k.overlap * slot, 0) for travels in _share_weights(c, k))
    m = c.micro_batches
    per_layer = m * layers
    terms = {
        "matrix products": per_layer * product_passes * products,
        "recomputation": per_layer * again,
        "attention": per_layer * attention_passes * attention,
        "memory-bound operators": per_layer * passes * operators,
        "output layer and loss": m * head,
        "tensor-parallel communication": per_layer * within,
        "context-parallel communication": per_layer * across,
        "expert-parallel communication": per_layer * routing,
        "host": per_layer * (layer - device),
        "pipeline bubble": (c.pipeline - 1) / c.virtual * c.most_layers * layer + m * ahead,
        "pipeline communication": _hop(c, k, states),
        "sharded weights and gradients": m * each,
        "gradients": once,
        "copied weights and gradients": m * weights,
        "optimizer": c.trained * c.stepped_parameters * counts["optimizer_bytes"] / streaming,
        "step": np.full_like(m, k.step_s),
    }
    # Of a stage in the mean: what a run's GPUs do, one with another.
    attention_again = attention_passes + c.recomputes_attention
    multiplied = (product_passes + c.recomputes_products) * products + attention_again * score_products
    moved = (passes + c.recomputes_operators) * operators + attention_again * softmax
    kernels = {
        "products": m * (c.layers * multiplied + head_products) / c.pipeline,
        "attention": m * c.layers * attention_again * flash / c.pipeline,
        "memory": m * ((c.layers * moved + loss) / c.pipeline + weights),
        "optimizer": terms["optimizer"],
        "host": m * (c.layers * launching + launching_head) / c.pipeline + k.step_s,
    }
    of_terms = (np.broadcast_to(terms[name], m.shape) for name in TERMS)
    return np.stack(tuple(of_terms)), np.stack([kernels[name] for name in StepTerms._fields])
