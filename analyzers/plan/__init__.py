"""How much memory training takes on the fullest GPU, an estimate; and how long it takes.

States: ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054). Activations: layer by layer as the backward pass needs them
(Korthikanti et al. 2022, arXiv 2205.05198, section 4). Of a pipeline the fuller of two stages counts: the first, which
holds the most micro-batches, or the last, which has the loss. Allocator, communication library and CUDA context are not
counted: some percent of the GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from math import ceil
from typing import NamedTuple

from perfscope.analyzers.tflops.per_token import vocabulary_rows
from perfscope.constants import S_PER_DAY, S_PER_HOUR, TERA
from perfscope.models.conventions import Checkpointing
from perfscope.models.parameter_counts import embedding_parameters, position_parameters, total_parameters
from perfscope.models.transformer import GATED_MATRICES, Transformer

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
    ``fused`` keeps one fp32 copy (Korthikanti et al. 2022, section 4.3). ``compiled`` keeps the 16-bit logits,
    because torch.compile fuses what follows them. ``chunked`` has the logits of an eighth of the tokens at a time.
    """

    PLAIN = "plain"
    COMPILED = "compiled"
    FUSED = "fused"
    CHUNKED = "chunked"


#: Defaults of DeepSpeed's ZeRO 3.
_MOST_LIVE_PARAMETERS, _REDUCED_ELEMENTS = 10**9, 5 * 10**8
_GATHERED_LAYERS = 2
_CHUNKS = 8
_OPTIMIZER_BYTES = {OptimizerKind.ADAM: 8, OptimizerKind.ADAM_8BIT: 2, OptimizerKind.SGD: 4}


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes per parameter of each state, and per element of the activations.

    ``cast`` is the copy of the weights that autocast makes and the backward pass needs. ``residual`` is of the inputs
    of the norms, where they differ from the other activations. ``is_plain_loop``: PyTorch's own optimizers train, whose
    gradients are freed before the forward pass.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    cast: int = 0
    residual: int | None = None
    is_plain_loop: bool = False

    @property
    def checkpoint(self) -> int:
        """Bytes per parameter in a checkpoint: weights and optimizer; gradients are not saved."""
        return self.weights + self.optimizer


class StatePrecision(StrEnum):
    """Precision of weights, gradients and optimizer."""

    MIXED = "mixed"
    MEGATRON = "megatron"
    AUTOCAST = "autocast"
    PURE = "pure"
    FP32 = "fp32"


def state_bytes_of(states: StatePrecision, optimizer: OptimizerKind) -> StateBytes:
    """Bytes per parameter of each state.

    ``mixed``: 16 bits with an fp32 copy in the optimizer, as DeepSpeed; ``megatron`` has fp32 gradients, too.
    ``autocast``: fp32, of which ``torch.autocast`` makes 16-bit copies to compute in. ``pure``: 16 bits throughout,
    also the optimizer. ``fp32``: fp32 throughout, without a second copy of the weights.
    """
    state = _OPTIMIZER_BYTES[optimizer]
    if states is StatePrecision.AUTOCAST:
        return StateBytes(4, 4, state, 2, cast=2, residual=4, is_plain_loop=True)
    if states is StatePrecision.PURE:
        return StateBytes(2, 2, min(state // 2, 4) or 1, 2, is_plain_loop=True)
    if states is StatePrecision.FP32:
        return StateBytes(4, 4, state, 4, is_plain_loop=True)
    return StateBytes(2, 4 if states is StatePrecision.MEGATRON else 2, 4 + state, 2)


@dataclass(frozen=True, slots=True)
class ParallelLayout:
    """How a model is spread over GPUs.

    The expert degree divides the data-parallel one. Context-parallel ranks have the same weights, so ZeRO shards the
    states over them, too. ``micro_batch`` is sequences of one forward pass, ``micro_batches`` forward passes of a step.
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
    at once, with its buckets; ``buckets`` are those of DistributedDataParallel; ``stepping`` is what the optimizer
    makes.
    """

    layout: ParallelLayout
    weights: int
    gradients: int
    optimizer: int
    activations: int
    cast: int = 0
    gathered: int = 0
    buckets: int = 0
    stepping: int = 0
    is_plain_loop: bool = False

    @property
    def total(self) -> int:
        """The peak: of a plain loop without accumulation the activations are gone when all gradients are there."""
        together = self.weights + self.gradients + self.optimizer + self.activations + self.gathered + self.buckets
        if not self.is_plain_loop or (self.layout.micro_batches or 1) > 1:
            return together
        stepping = together - self.activations - self.gathered - self.cast + self.stepping
        return max(together - self.gradients, stepping)


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
    scale = parameters / total_parameters(model)
    stages = [PipelineEnd.FIRST] if layout.pipeline == 1 else [PipelineEnd.FIRST, PipelineEnd.LAST]
    estimates = [
        replace(
            _estimate_states(model, scale, layout, precision, _count_parameters(model, layout, stage)),
            activations=activation_bytes(
                model,
                seq_len,
                precision.activations,
                attention,
                layout,
                stage=stage,
                residual_bytes=precision.residual,
                is_plain_loop=precision.is_plain_loop,
            ),
        )
        for stage in stages
    ]
    return max(estimates, key=lambda memory: memory.total)


class PipelineEnd(Enum):
    """A stage of a pipeline; without one the first stage is also the last."""

    FIRST = "first"
    LAST = "last"


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
        expert_ranks = max(1, replicas // layout.expert) if sharded else 1
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
        gathered=ceil(scale * _gathered_bytes(model, precision, parameters)) if is_gathered else 0,
        buckets=state_bytes(GRADIENTS, precision.gradients) if has_ddp else 0,
        # torch's foreach optimizers make one tensor of each gradient's size
        stepping=state_bytes(GRADIENTS, precision.gradients),
        is_plain_loop=precision.is_plain_loop,
    )


def _gathered_bytes(model: Transformer, precision: StateBytes, parameters: _ParametersPerGpu) -> float:
    """Bytes of the weights that a rank gathers at once, and of the buckets that it sends gradients in.

    FSDP gathers the layer that runs and the next one, beside what is in no layer. DeepSpeed keeps up to 10**9
    parameters gathered (``stage3_max_live_parameters``), and has a bucket of 5 * 10**8 elements
    (``reduce_bucket_size``).
    """
    whole = parameters.shared + parameters.routed
    if not precision.is_plain_loop:
        return precision.activations * (min(whole, _MOST_LIVE_PARAMETERS) + _REDUCED_ELEMENTS)
    tables = embedding_parameters(model) * (1 if model.tied else 2) + position_parameters(model)
    return precision.activations * (tables + _GATHERED_LAYERS * max(0, whole - tables) / model.layers)


def _count_parameters(model: Transformer, layout: ParallelLayout, stage: PipelineEnd) -> _ParametersPerGpu:
    """Parameters of a GPU of a stage, before ZeRO.

    The first pipeline stage has the embedding, the last one the output layer, which is a copy where they are tied;
    without a pipeline one GPU has both.
    """
    layers = ceil(model.layers / layout.pipeline)
    share = layers / model.layers / layout.tensor
    routed = 0
    if model.experts:
        weights = model.mlp_matrices * model.hidden * model.experts.ffn + model.experts.vectors
        routed = model.experts.layers * model.experts.routed * weights
    tables = embedding_parameters(model) * (1 if model.tied else 2) + position_parameters(model)
    in_layers = total_parameters(model) - tables - routed
    if layout.pipeline > 1:
        tables = embedding_parameters(model) + (position_parameters(model) if stage is PipelineEnd.FIRST else 0)
    return _ParametersPerGpu(in_layers * share + tables / layout.tensor, routed * share / layout.expert)


def activation_bytes(
    model: Transformer,
    seq_len: int,
    element_bytes: int,
    attention: Attention,
    layout: ParallelLayout,
    *,
    stage: PipelineEnd = PipelineEnd.FIRST,
    residual_bytes: int | None = None,
    is_plain_loop: bool = False,
) -> int:
    """Bytes of the activations of a GPU on a pipeline stage."""
    tokens = ceil(seq_len * layout.micro_batch / layout.context)
    layers = ceil(model.layers / layout.pipeline)
    in_flight = layout.in_flight if stage is PipelineEnd.FIRST else 1
    is_cast_by_fsdp = layout.zero == LAST_STAGE and layout.data * layout.context > 1
    residual = element_bytes if residual_bytes is None or is_cast_by_fsdp else residual_bytes
    layer = _layer_bytes(model, seq_len, element_bytes, attention, layout)
    layer += 2 * (residual - element_bytes) * model.hidden / (layout.tensor if layout.sequence_parallel else 1)
    # The 16-bit logits are gone where nothing but the loss needs them; Megatron-core keeps them.
    kept_logits = 0 if is_plain_loop or layout.zero == LAST_STAGE else element_bytes
    head = (
        _head_bytes(model, tokens, element_bytes, layout, kept_logits)
        if layout.pipeline == 1 or stage is PipelineEnd.LAST
        else 0
    )
    if layout.checkpointing is Checkpointing.FULL:
        split = layout.tensor if layout.sequence_parallel else 1
        layer_inputs = layers * in_flight * residual * model.hidden / split
        # The logits are freed before the first layer is recomputed.
        return ceil(tokens * layer_inputs) + max(ceil(tokens * layer), head)
    return ceil(tokens * layers * in_flight * layer) + head


def _layer_bytes(
    model: Transformer, seq_len: int, element_bytes: int, attention: Attention, layout: ParallelLayout
) -> float:
    hidden = model.hidden
    dropout_masks = 2 * hidden if layout.dropout and model.mlp_matrices != GATED_MATRICES else 0
    # The inputs of both norms, of the attention and of the MLP, which tensor parallelism alone does not split.
    unsplit = 4 * element_bytes * hidden + dropout_masks
    kv_dim = model.heads * model.head_dim if model.latent else model.kv_heads * model.head_dim
    split = element_bytes * (model.query_dim + 2 * kv_dim + model.value_dim) + _mlp_bytes(model, element_bytes)
    if attention is Attention.EAGER and layout.checkpointing is not Checkpointing.SELECTIVE:
        split += (2 * element_bytes + 1) * model.heads * seq_len
    return split / layout.tensor + unsplit / (layout.tensor if layout.sequence_parallel else 1)


def _mlp_bytes(model: Transformer, element_bytes: int) -> float:
    tensors = 4 if model.mlp_matrices == GATED_MATRICES else 2
    ffn: float = model.ffn
    if model.experts:
        active_ffn = model.experts.active * model.experts.ffn + model.experts.shared_ffn
        ffn = (model.ffn * (model.layers - model.experts.layers) + active_ffn * model.experts.layers) / model.layers
    return element_bytes * tensors * ffn


def _head_bytes(model: Transformer, tokens: int, element_bytes: int, layout: ParallelLayout, kept_logits: int) -> int:
    bytes_per_logit = {
        Loss.PLAIN: kept_logits + 3 * 4,
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
