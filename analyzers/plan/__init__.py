"""How much memory training takes on the fullest GPU, an estimate; and how long it takes.

States: ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054). Activations: layer by layer as the backward pass needs them
(Korthikanti et al. 2022, arXiv 2205.05198, section 4). Of a pipeline the fuller of two stages counts: the first, which
holds the most micro-batches and layers, or the stage of the output layer. The communication library and the CUDA
context are not counted: some percent of the GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from math import ceil, log
from statistics import NormalDist
from typing import NamedTuple

from perfscope.analyzers.tflops.per_token import vocabulary_rows
from perfscope.constants import S_PER_DAY, S_PER_HOUR, TERA
from perfscope.models.conventions import Checkpointing
from perfscope.models.parameter_counts import (
    activated_width,
    embedding_parameters,
    expert_split,
    layer_weights,
    position_parameters,
    total_parameters,
)
from perfscope.models.transformer import GATED_MATRICES, Mixing, Transformer

WEIGHTS, GRADIENTS, OPTIMIZER = "weights", "gradients", "optimizer"
_SHARDED_FROM = {OPTIMIZER: 1, GRADIENTS: 2, WEIGHTS: 3}
LAST_STAGE = _SHARDED_FROM[WEIGHTS]


class OptimizerKind(StrEnum):
    """The optimizer, which decides the bytes of its state per parameter."""

    ADAM = "adam"
    ADAM_8BIT = "adam8bit"
    SGD = "sgd"


class Attention(StrEnum):
    """The attention implementation: only ``eager`` keeps the attention matrix for the backward pass."""

    FLASH = "flash"
    EAGER = "eager"


class Loss(StrEnum):
    """The cross-entropy implementation, which decides how many copies of the logits the backward pass starts with.

    ``plain`` is PyTorch's cross-entropy in fp32: the logits, their log-probabilities in fp32, and two gradients.
    ``sharded`` is that of Megatron and nanotron over tensor-parallel ranks: 16-bit logits, an fp32 copy, and a softmax
    that becomes the gradient. ``fused`` keeps one fp32 copy (Korthikanti et al. 2022, section 4.3). ``compiled`` keeps
    the 16-bit logits: torch.compile fuses what follows them, TransformerEngine writes the gradient over them.
    ``chunked`` has the logits of an eighth of the tokens at a time.
    """

    PLAIN = "plain"
    SHARDED = "sharded"
    COMPILED = "compiled"
    FUSED = "fused"
    CHUNKED = "chunked"


#: The losses of software that fuses SwiGLU, too: Megatron (``bias_swiglu_fusion``), torch.compile and Liger.
_FUSED = (Loss.SHARDED, Loss.COMPILED, Loss.FUSED)
#: Defaults of DeepSpeed's ZeRO 3.
_MOST_LIVE_PARAMETERS, _REDUCED_ELEMENTS = 10**9, 5 * 10**8
_GATHERED_LAYERS = 2
_CHUNKS = 8
#: Tensors of whole sequences that sequence parallelism holds beside the activations. nanotron keeps two buffers for
#: what it gathers (src/nanotron/parallel/tensor_parallel/functional.py); the pass of a layer has three more.
_WHOLE_SEQUENCES = 5
#: What PyTorch's allocator reserves over what it allocates at the peak: the median of 101 runs of nanotron without
#: tensor parallelism, those of a random half of its table (reports/predictions.md). It is 1.02 to 1.38 in 13 runs of
#: five frameworks on H200 (fixtures/real_runs).
_RESERVED = 1.09
#: The spread of the logarithm of measured over estimated bytes. Half of the central 68 % is 0.07 in the 895 runs of
#: that half, by the nearer of nanotron's two ways. With 0.1 what is said of its rows that could start comes true.
_SPREAD = 0.1
_OPTIMIZER_BYTES = {OptimizerKind.ADAM: 8, OptimizerKind.ADAM_8BIT: 2, OptimizerKind.SGD: 4}


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes per parameter of each state, and per element of the activations.

    ``inputs`` is of the inputs that linear layers keep, and ``residual`` of those of the norms, where they differ from
    the other activations. ``cast`` is the copy of the weights that autocast makes and the backward pass needs.
    ``is_plain_loop``: PyTorch's own optimizers train, whose gradients are freed before the forward pass.
    ``is_balanced``: stages of a pipeline have equal costs, not equally many layers. ``is_eager``: SwiGLU is not fused,
    whatever the loss is.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    inputs: int | None = None
    cast: int = 0
    residual: int | None = None
    is_plain_loop: bool = False
    is_balanced: bool = False
    is_eager: bool = False

    @property
    def sent(self) -> int:
        """Bytes of a gradient as replicas send it: in fp32 where 16 bits are added to that."""
        return min(self.gradients, 4)

    @property
    def checkpoint(self) -> int:
        """Bytes per parameter in a checkpoint: weights and optimizer; gradients are not saved."""
        return self.weights + self.optimizer


class StatePrecision(StrEnum):
    """Precision of weights, gradients and optimizer."""

    MIXED = "mixed"
    MEGATRON = "megatron"
    NANOTRON = "nanotron"
    AUTOCAST = "autocast"
    PURE = "pure"
    FP32 = "fp32"


def state_bytes_of(states: StatePrecision, optimizer: OptimizerKind, *, in_fp8: bool = False) -> StateBytes:
    """Bytes per parameter of each state; ``in_fp8``: matrix products are in 8 bits, or fewer.

    ``mixed``: 16 bits with an fp32 copy in the optimizer, as DeepSpeed; ``megatron`` has fp32 gradients, too.
    ``nanotron`` has 16-bit gradients beside the fp32 ones that it adds them to.
    ``autocast``: fp32, of which ``torch.autocast`` makes 16-bit copies to compute in. ``pure``: 16 bits throughout,
    also the optimizer. ``fp32``: fp32 throughout, without a second copy of the weights. In fp8 the first two are of
    TransformerEngine: linear layers keep their inputs, and weights with their transposes, in 8 bits
    (transformer_engine/pytorch/module/linear.py). The others are of torchao, with which torchtitan reserves as much as
    in 16 bits: 76.8 and 77.0 GiB (benchmarks/llama3_h100_202412_torchtitan.md).
    """
    state = _OPTIMIZER_BYTES[optimizer]
    if states is StatePrecision.AUTOCAST:
        return StateBytes(4, 4, state, 2, cast=2, residual=4, is_plain_loop=True)
    if states is StatePrecision.PURE:
        return StateBytes(2, 2, min(state // 2, 4) or 1, 2, is_plain_loop=True)
    if states is StatePrecision.FP32:
        return StateBytes(4, 4, state, 4, is_plain_loop=True)
    if states is StatePrecision.NANOTRON:
        return StateBytes(2, 4 + 2, 4 + state, 2, is_balanced=True, is_eager=True)
    gradients = 4 if states is StatePrecision.MEGATRON else 2
    return StateBytes(2, gradients, 4 + state, 2, inputs=1 if in_fp8 else None)


@dataclass(frozen=True, slots=True)
class ParallelLayout:
    """How a model is spread over GPUs.

    Expert-parallel ranks span those of tensor, context and data parallelism. Context-parallel ranks have the same
    weights, so ZeRO shards the states over them, too. ``micro_batch`` is sequences of one forward pass,
    ``micro_batches`` forward passes of a step.
    """

    data: int
    tensor: int
    pipeline: int
    zero: int
    checkpointing: Checkpointing
    micro_batch: int
    expert: int = 1
    sequence_parallel: bool = False
    micro_batches: int | None = None
    loss: Loss = Loss.PLAIN
    context: int = 1
    virtual: int = 1
    dropout: bool = True

    @property
    def in_flight(self) -> float:
        """The largest number of micro-batches whose activations the first stage holds.

        One for each stage, and with interleaving ``1 + (p - 1) / (p v)`` times as many (Korthikanti et al. 2022,
        section 4.2.3); never more than a step has.
        """
        stages = self.pipeline
        in_flight = stages + (stages - 1) / self.virtual if self.virtual > 1 else float(stages)
        return in_flight if self.micro_batches is None else min(in_flight, self.micro_batches)


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes on the fullest GPU.

    ``weights`` have the copies ``cast``, which are gone when the optimizer steps. ``gathered`` is what ZeRO 3 gathers
    at once, with its buckets. ``buckets`` are those of DistributedDataParallel. ``exchanged`` are whole sequences that
    sequence parallelism gathers or is about to scatter. ``stepping`` is what the optimizer makes. ``stage`` is that of
    the pipeline, from 0.
    """

    layout: ParallelLayout
    weights: int
    gradients: int
    optimizer: int
    activations: int
    cast: int = 0
    gathered: int = 0
    buckets: int = 0
    exchanged: int = 0
    stepping: int = 0
    is_plain_loop: bool = False
    stage: int = 0

    @property
    def total(self) -> int:
        """The peak: of a plain loop without accumulation the activations are gone when all gradients are there."""
        together = self.weights + self.gradients + self.optimizer + self.activations
        together += self.gathered + self.buckets + self.exchanged
        if not self.is_plain_loop or (self.layout.micro_batches or 1) > 1:
            return together
        stepping = together - self.activations - self.gathered - self.cast + self.stepping
        return max(together - self.gradients, stepping)

    @property
    def reserved(self) -> int:
        """What PyTorch's allocator reserves at that peak: freed blocks that nothing else fits in are kept."""
        return ceil(_RESERVED * self.total)

    def fit_probability(self, memory_bytes: int) -> float:
        """The probability that a GPU's memory suffices, by how far measured bytes are from estimated ones."""
        return NormalDist(sigma=_SPREAD).cdf(log(memory_bytes / self.reserved))


def estimate_memory(
    model: Transformer,
    layout: ParallelLayout,
    *,
    parameters: int,
    seq_len: int,
    precision: StateBytes,
    attention: Attention,
) -> MemoryEstimate:
    """The memory of the fullest GPU, for a number of parameters that the model's shape stands for."""
    ends = estimate_ends(
        model, layout, parameters=parameters, seq_len=seq_len, precision=precision, attention=attention
    )
    return max(ends, key=lambda memory: memory.total)


def estimate_ends(
    model: Transformer,
    layout: ParallelLayout,
    *,
    parameters: int,
    seq_len: int,
    precision: StateBytes,
    attention: Attention,
) -> tuple[MemoryEstimate, ...]:
    """The memory of a GPU of the first stage, and of the stage with the output layer."""
    scale = parameters / total_parameters(model)
    estimates = []
    for end in [PipelineEnd.FIRST] if layout.pipeline == 1 else PipelineEnd:
        stage = find_stage(model, layout, end, is_balanced=precision.is_balanced)
        states = _estimate_states(model, scale, layout, precision, _count_parameters(model, layout, stage))
        activations = activation_bytes(model, seq_len, precision, attention, layout, stage=stage)
        whole = _tokens(layout, seq_len) * precision.activations * model.hidden
        exchanged = _WHOLE_SEQUENCES * whole if layout.sequence_parallel and layout.tensor > 1 else 0
        estimates.append(replace(states, activations=activations, exchanged=exchanged, stage=stage.number))
    return tuple(estimates)


class PipelineEnd(Enum):
    """A stage of a pipeline; without one the first stage is also the last."""

    FIRST = "first"
    LAST = "last"


class Stage(NamedTuple):
    """A stage of a pipeline: its layers, and the largest number of micro-batches whose activations it holds."""

    number: int
    layers: int
    in_flight: float
    has_embedding: bool
    has_output: bool


def find_stage(
    model: Transformer, layout: ParallelLayout, end: PipelineEnd = PipelineEnd.FIRST, *, is_balanced: bool = False
) -> Stage:
    """The first stage of 1F1B, or the one with the output layer; no stage between them is fuller than the first.

    Stages have equally many layers, rounded up. ``is_balanced``: as nanotron, stages have equal shares of the products'
    cost, in which the output layer counts. A stage ends after the layer that exceeds its share
    (``build_model`` in src/nanotron/models/base.py).
    """
    stages = layout.pipeline
    if stages == 1:
        return Stage(0, model.layers, layout.in_flight, has_embedding=True, has_output=True)
    layers, output = [ceil(model.layers / stages)] * stages, stages - 1
    if is_balanced:
        layers, output = balance_stages(model, stages)
    if end is PipelineEnd.FIRST:
        return Stage(0, layers[0], layout.in_flight, has_embedding=True, has_output=output == 0)
    in_flight = min(stages - output, layout.micro_batches or stages)
    return Stage(output, layers[output], in_flight, has_embedding=output == 0, has_output=True)


def balance_stages(model: Transformer, stages: int) -> tuple[list[int], int]:
    """The layers of each stage, and the stage of the output layer, where stages are of equal cost."""
    cost = layer_weights(model, model.experts.active if model.experts else 0)
    whole = cost + embedding_parameters(model)
    layers, stage = [0] * stages, 0
    for layer in range(1, model.layers + 1):
        layers[stage] += 1
        stage += layer * cost * stages > (stage + 1) * whole * model.layers
    return layers, stage


class _ParametersPerGpu(NamedTuple):
    shared: float
    routed: float


def _estimate_states(
    model: Transformer, scale: float, layout: ParallelLayout, precision: StateBytes, parameters: _ParametersPerGpu
) -> MemoryEstimate:
    def state_bytes(name: str, bytes_per_parameter: int) -> int:
        sharded = layout.zero >= _SHARDED_FROM[name]
        replicas = layout.data * layout.context
        dense_ranks = replicas if sharded else 1
        expert_ranks = replicas * layout.tensor / expert_split(layout.tensor, layout.expert) if sharded else 1
        local_parameters = parameters.shared / dense_ranks + parameters.routed / expert_ranks
        return ceil(scale * bytes_per_parameter * local_parameters)

    is_parallel = layout.data * layout.context > 1
    is_gathered = layout.zero == LAST_STAGE and is_parallel
    has_ddp = precision.is_plain_loop and is_parallel and layout.zero < _SHARDED_FROM[GRADIENTS]
    copies = 0 if is_gathered else state_bytes(WEIGHTS, precision.cast)
    return MemoryEstimate(
        layout=layout,
        weights=state_bytes(WEIGHTS, precision.weights) + copies,
        gradients=state_bytes(GRADIENTS, precision.gradients),
        optimizer=state_bytes(OPTIMIZER, precision.optimizer),
        activations=0,
        cast=copies,
        gathered=ceil(scale * _gathered_bytes(model, layout, precision, parameters)) if is_gathered else 0,
        buckets=state_bytes(GRADIENTS, precision.gradients) if has_ddp else 0,
        # torch's foreach optimizers make one tensor of each gradient's size
        stepping=state_bytes(GRADIENTS, precision.gradients),
        is_plain_loop=precision.is_plain_loop,
    )


def _gathered_bytes(
    model: Transformer, layout: ParallelLayout, precision: StateBytes, parameters: _ParametersPerGpu
) -> float:
    """Bytes of the weights that a rank gathers at once, and of the buckets that it sends gradients in.

    FSDP gathers the layer that runs and the next one, beside what is in no layer. In a pipeline all its weights and
    gradients are whole during a step (``reshard_after_forward`` in torchtitan/distributed/fsdp.py). DeepSpeed keeps up
    to 10**9 parameters gathered (``stage3_max_live_parameters``), and has a bucket of 5 * 10**8 elements
    (``reduce_bucket_size``).
    """
    whole = parameters.shared + parameters.routed
    if not precision.is_plain_loop:
        return precision.activations * (min(whole, _MOST_LIVE_PARAMETERS) + _REDUCED_ELEMENTS)
    if layout.pipeline > 1:
        return (precision.activations + precision.gradients) * whole
    tables = embedding_parameters(model) * (1 if model.tied else 2) + position_parameters(model)
    return precision.activations * (tables + _GATHERED_LAYERS * max(0, whole - tables) / model.layers)


def _count_parameters(model: Transformer, layout: ParallelLayout, stage: Stage) -> _ParametersPerGpu:
    """Parameters of a GPU of a stage, before ZeRO; tied embeddings are two copies where two stages have them."""
    share, routed = stage.layers / model.layers, 0
    if model.experts:
        width = model.experts.latent or model.hidden
        weights = model.mlp_matrices * width * model.experts.ffn + model.experts.vectors
        routed = model.experts.layers * model.experts.routed * weights
    tables = embedding_parameters(model) * (1 if model.tied else 2) + position_parameters(model)
    in_layers = total_parameters(model) - tables - routed
    if not (stage.has_embedding and stage.has_output):
        tables = embedding_parameters(model) + (position_parameters(model) if stage.has_embedding else 0)
    shared = (in_layers * share + tables) / layout.tensor
    return _ParametersPerGpu(shared, routed * share / expert_split(layout.tensor, layout.expert))


def activation_bytes(
    model: Transformer,
    seq_len: int,
    precision: StateBytes,
    attention: Attention,
    layout: ParallelLayout,
    *,
    stage: Stage | None = None,
) -> int:
    """Bytes of the activations of a GPU on a pipeline stage, by default the first."""
    tokens = _tokens(layout, seq_len)
    stage = stage or find_stage(model, layout)
    layers, in_flight = stage.layers, stage.in_flight
    is_cast_by_fsdp = layout.zero == LAST_STAGE and layout.data * layout.context > 1
    residual = precision.activations if precision.residual is None or is_cast_by_fsdp else precision.residual
    split = layout.tensor if layout.sequence_parallel else 1
    layer = _layer_bytes(model, seq_len, precision, attention, layout)
    layer += 2 * (residual - precision.activations) * model.hidden / split
    # The 16-bit logits are gone where nothing but the loss needs them; Megatron-core keeps them.
    kept_logits = 0 if precision.is_plain_loop or layout.zero == LAST_STAGE else precision.activations
    head = _head_bytes(model, tokens, precision.activations, layout, kept_logits) if stage.has_output else 0
    is_selective = layout.checkpointing is Checkpointing.SELECTIVE and attention is Attention.FLASH
    by_operation = is_selective and precision.is_plain_loop  # Megatron recomputes no more than the attention
    if by_operation or layout.checkpointing is Checkpointing.FULL:
        kept = residual * model.hidden / split
        if by_operation:
            kept += precision.activations * _kept_results(model) / layout.tensor
        # The logits are freed before the first layer is recomputed.
        return ceil(tokens * layers * in_flight * kept) + max(ceil(tokens * layer), head)
    return ceil(tokens * layers * in_flight * layer) + head


def _kept_results(model: Transformer) -> float:
    """Elements of a token that an average layer keeps with torchtitan's `op`: every second product, and attention.

    These are the query, the value, the gate and the last product (`_op_selective` of torchtitan v0.2.2).
    """
    gate = activated_width(model) / model.layers
    return model.query_dim + model.kv_heads * model.head_dim + gate + model.hidden + model.value_dim


def _tokens(layout: ParallelLayout, seq_len: int) -> int:
    return ceil(seq_len * layout.micro_batch / layout.context)


def _layer_bytes(
    model: Transformer, seq_len: int, precision: StateBytes, attention: Attention, layout: ParallelLayout
) -> float:
    """Bytes of a token in an average layer."""
    element_bytes, input_bytes = precision.activations, precision.inputs or precision.activations
    mixing = model.layers - sum(mixer.layers for mixer in model.mixers if mixer.kind is Mixing.NONE)
    norms = (mixing + model.layers - model.without_mlp) / model.layers
    # The inputs of norms, of the attention and of the MLP, which tensor parallelism alone does not split.
    unsplit = norms * (element_bytes + input_bytes) * model.hidden
    if layout.dropout and model.is_plain_gpt:
        unsplit += 2 * model.hidden  # masks
    has_scores = attention is Attention.EAGER and layout.checkpointing is not Checkpointing.SELECTIVE
    scores = (2 * element_bytes + 1) * model.heads * seq_len if has_scores else 0
    is_fused = layout.loss in _FUSED and not precision.is_eager
    split = _mixing_bytes(model, precision, scores)
    split += _mlp_bytes(model, element_bytes, input_bytes, is_fused=is_fused)
    return split / layout.tensor + unsplit / (layout.tensor if layout.sequence_parallel else 1)


def _mixing_bytes(model: Transformer, precision: StateBytes, scores: int) -> float:
    """Bytes of an average layer: of its attention or Mamba-2.

    Mamba-2 keeps the inputs of its kernel, the result, which the norm keeps again, and what the norm makes
    (mamba_ssm/ops/triton/ssd_combined.py, megatron/core/ssm/mamba_mixer.py).
    """
    element_bytes, input_bytes = precision.activations, precision.inputs or precision.activations
    kv_dim = model.heads * model.head_dim if model.latent else model.kv_heads * model.head_dim
    # What attention keeps is the next input; in 8 bits that is a second tensor.
    values = (element_bytes + (precision.inputs or 0)) * model.value_dim
    attention = element_bytes * (model.query_dim + 2 * kv_dim) + values + scores
    total = float(attention * model.full_layers)
    for mixer in model.mixers:
        if mixer.kind is Mixing.MAMBA:
            inputs = (mixer.weights - mixer.convolution) / model.hidden - mixer.width
            total += mixer.layers * (element_bytes * (inputs + 2 * mixer.width) + input_bytes * mixer.width)
        elif mixer.kind is not Mixing.NONE:
            total += mixer.layers * attention
    return total / model.layers


def _mlp_bytes(model: Transformer, element_bytes: int, input_bytes: int, *, is_fused: bool) -> float:
    """Bytes of an average layer: of what the activation function reads and makes, and of experts' copies of tokens.

    A fused SwiGLU keeps its two inputs and the product (megatron/core/fusions/fused_bias_swiglu.py). PyTorch's
    operations keep the function of the gate, too.
    """
    tensors = 1 if model.mlp_matrices != GATED_MATRICES else 2 if is_fused else 3
    copies = 0
    if model.experts:
        copies = model.experts.layers * model.experts.active * (model.experts.latent or model.hidden)
    width = activated_width(model)
    return ((element_bytes * tensors + input_bytes) * width + input_bytes * copies) / model.layers


def _head_bytes(model: Transformer, tokens: int, element_bytes: int, layout: ParallelLayout, kept_logits: int) -> int:
    bytes_per_logit = {
        Loss.PLAIN: kept_logits + 3 * 4,
        Loss.SHARDED: element_bytes + 2 * 4,
        Loss.COMPILED: element_bytes,
        Loss.FUSED: 4,
        Loss.CHUNKED: (element_bytes + 3 * 4) / _CHUNKS,
    }[layout.loss]
    logits = bytes_per_logit * vocabulary_rows(model)
    return ceil(tokens * (2 * element_bytes * model.hidden + logits) / layout.tensor)


@dataclass(frozen=True, slots=True)
class Duration:
    """The duration of a training run; None for what is unknown.

    ``flops_per_token`` is by the convention of ``tflops_per_gpu``. ``solved_for`` names what was computed of
    ``tokens``, ``tflops`` and ``time``; it is empty where too few are known.
    """

    flops_per_token: int
    tokens: int | None
    gpus: int
    tflops_per_gpu: float | None
    seconds: float | None
    solved_for: str

    @property
    def days(self) -> float | None:
        """The time in days."""
        return None if self.seconds is None else self.seconds / S_PER_DAY

    @property
    def hours(self) -> float | None:
        """The time in hours."""
        return None if self.seconds is None else self.seconds / S_PER_HOUR

    @property
    def gpu_hours(self) -> float | None:
        """The time in hours, summed over all GPUs."""
        return None if self.hours is None else self.hours * self.gpus


def solve_duration(
    flops_per_token: int, tokens: int | None, gpus: int, tflops_per_gpu: float | None, seconds: float | None
) -> Duration:
    """Compute the missing one of tokens, TFLOPs and time; nothing where more than one is missing."""
    solved_for = ""
    rate = None if tflops_per_gpu is None else gpus * tflops_per_gpu * TERA
    if tokens is not None and rate is not None and seconds is None:
        seconds, solved_for = tokens * flops_per_token / rate, "time"
    elif tokens is not None and rate is None and seconds is not None:
        tflops_per_gpu, solved_for = tokens * flops_per_token / seconds / gpus / TERA, "tflops"
    elif tokens is None and rate is not None and seconds is not None:
        tokens, solved_for = int(rate * seconds / flops_per_token), "tokens"
    return Duration(flops_per_token, tokens, gpus, tflops_per_gpu, seconds, solved_for)
