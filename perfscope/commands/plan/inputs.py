"""What ``perfscope plan`` was asked, and the layouts that it looks at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from perfscope.analyzers.planning.memory import (
    LAST_STAGE,
    Attention,
    Layout,
    Loss,
    Optimizer,
    Precision,
    autocast_precision,
    full_precision,
    mixed_precision,
    pure_16bit,
)
from perfscope.commands.options.peaks import Dtype
from perfscope.errors import UsageError
from perfscope.models.conventions import Checkpointing
from perfscope.models.transformer import Transformer

DEFAULT_SEQ_LEN = 1024
DEFAULT_MICRO_BATCH = 1
_GPUS_OF_A_NODE = 8


class ConventionName(StrEnum):
    """The convention that ``--tflops`` is of."""

    BIGSCIENCE = "bigscience"
    SIX_N = "6n"
    MEGATRON_PAPER = "megatron_paper"
    MEGATRON_CORE = "megatron_core"
    TORCHTITAN = "torchtitan"
    PALM = "palm"


class States(StrEnum):
    """What weights, gradients and optimizer are kept in.

    ``mixed``: 16 bits with an fp32 copy in the optimizer, as Megatron and DeepSpeed. ``autocast``: fp32, with 16-bit
    copies to compute in. ``pure``: 16 bits throughout. ``fp32``: fp32 throughout.
    """

    MIXED = "mixed"
    AUTOCAST = "autocast"
    PURE = "pure"
    FP32 = "fp32"


_PRECISIONS = {States.AUTOCAST: autocast_precision, States.PURE: pure_16bit, States.FP32: full_precision}


@dataclass(frozen=True, slots=True)
class Question:
    """What was asked; absent is what was not said.

    Attributes:
        gpus: Number of GPUs.
        tokens: Tokens to train on.
        tflops_per_gpu: TFLOPs per GPU by ``convention``.
        seconds: How long it may take.
        convention: The convention of the TFLOPs.
        checkpointing: Which activations are recomputed.
        seq_len: Tokens in a sequence.
        zero, tensor, pipeline, expert, context: Stage of ZeRO and degrees of parallelism.
        virtual: Virtual stages of each pipeline rank.
        micro_batch, global_batch: Sequences of a forward pass and of a step.
        sequence_parallel, attention, optimizer, gradient_bytes: As in ``perfscope.analyzers.planning.memory``.
        dtype: The number format.
        loss: What is kept of the logits.
        states: What weights, gradients and optimizer are kept in; absent to follow the number format.
        offload: What is kept off the GPU.
        read: What was read from files, in words.
    """

    gpus: int
    tokens: int | None = None
    tflops_per_gpu: float | None = None
    seconds: float | None = None
    convention: ConventionName = ConventionName.BIGSCIENCE
    checkpointing: Checkpointing | None = None
    seq_len: int | None = None
    zero: int | None = None
    tensor: int | None = None
    pipeline: int | None = None
    expert: int | None = None
    micro_batch: int | None = None
    global_batch: int | None = None
    sequence_parallel: bool = False
    attention: Attention = Attention.FLASH
    optimizer: Optimizer = Optimizer.ADAM
    gradient_bytes: int | None = None
    dtype: Dtype | None = None
    context: int | None = None
    virtual: int | None = None
    loss: Loss = Loss.PLAIN
    states: States | None = None
    offload: tuple[str, ...] = ()
    read: tuple[str, ...] = ()

    @property
    def sequence(self) -> int:
        """Tokens in a sequence, with the default."""
        return self.seq_len or DEFAULT_SEQ_LEN

    @property
    def recomputed(self) -> Checkpointing:
        """Which activations are recomputed, with the default."""
        return self.checkpointing or Checkpointing.FULL

    def precision(self, dtype: str) -> Precision:
        """Bytes of each state in a number format."""
        states = self.states or (States.FP32 if dtype in (Dtype.FP32, Dtype.TF32) else States.MIXED)
        if states is States.MIXED:
            return mixed_precision(self.optimizer, self.gradient_bytes or 2)
        return _PRECISIONS[states](self.optimizer)


def with_deepspeed_config(question: Question, path: Path) -> Question:
    """Take from a DeepSpeed config what was not typed.

    Raises:
        SourceError: The file cannot be read.
        UsageError: It is no DeepSpeed config, or a value in it is not possible.
    """
    from perfscope.sources.models.deepspeed_config import read_deepspeed_config

    config = read_deepspeed_config(path)
    read = [f"ZeRO stage {config.zero_stage}, {config.dtype}"]
    if config.micro_batch:
        read.append(f"micro-batch {config.micro_batch}")
    if config.offload:
        read.append(f"{' and '.join(config.offload)} off the GPU")
    return replace(
        question,
        zero=config.zero_stage if question.zero is None else question.zero,
        micro_batch=question.micro_batch or config.micro_batch,
        global_batch=question.global_batch or config.train_batch_size,
        dtype=question.dtype or Dtype(config.dtype),
        offload=config.offload,
        read=tuple(f"{line}, from {path}" for line in read),
    )


def check_layout(question: Question, model: Transformer) -> None:
    """Refuse degrees that do not divide what they split.

    Raises:
        UsageError: They do not.
    """
    tensor, pipeline, expert = question.tensor or 1, question.pipeline or 1, question.expert or 1
    context, virtual = question.context or 1, question.virtual or 1
    if question.zero is not None and question.zero not in range(LAST_STAGE + 1):
        raise UsageError(f"the stage of ZeRO is 0 to {LAST_STAGE}, not {question.zero}")
    if question.gpus % (tensor * pipeline * context):
        degrees, names = f"{tensor} x {pipeline}", "--tp, --pp"
        if context > 1:
            degrees, names = f"{degrees} x {context}", f"{names}, --cp"
        raise UsageError(f"{question.gpus} GPUs do not divide into groups of {degrees} ({names})")
    if question.sequence % context:
        raise UsageError(f"a sequence of {question.sequence} tokens does not divide over {context} ranks (--cp)")
    if virtual > 1 and (pipeline == 1 or model.layers % (pipeline * virtual)):
        raise UsageError(
            f"{model.layers} layers do not divide into {pipeline} x {virtual} virtual stages (--pp, --virtual-stages)"
        )
    if model.heads % tensor:
        raise UsageError(f"{model.heads} heads do not divide into {tensor} tensor-parallel ranks")
    if pipeline > model.layers:
        raise UsageError(f"{model.layers} layers do not fill {pipeline} pipeline stages")
    if expert > 1 and model.experts is None:
        raise UsageError(f"--ep {expert} is given for a model without experts")
    if model.experts and (model.experts.routed % expert or (question.gpus // tensor // pipeline // context) % expert):
        raise UsageError(f"{model.experts.routed} experts over {expert} ranks of each replica do not divide (--ep)")


def check_batches(question: Question) -> None:
    """Refuse a global batch that does not divide into micro-batches.

    Raises:
        UsageError: It does not.
    """
    if question.global_batch is None:
        return
    replicas = max(1, question.gpus // ((question.tensor or 1) * (question.pipeline or 1) * (question.context or 1)))
    at_once = replicas * (question.micro_batch or DEFAULT_MICRO_BATCH)
    if question.global_batch % at_once:
        raise UsageError(
            f"a global batch of {question.global_batch} does not divide into micro-batches of "
            f"{question.micro_batch or DEFAULT_MICRO_BATCH} on {replicas} data-parallel ranks"
        )


def asked_layouts(question: Question) -> Iterator[Layout]:
    """Every ZeRO stage and checkpointing at the degrees that were asked for, or those that were asked for alone."""
    for checkpointing in _checkpointings(question):
        for zero in _stages(question, question.pipeline or 1):
            yield _layout(question, question.tensor or 1, question.pipeline or 1, zero, checkpointing)


def possible_layouts(question: Question, model: Transformer) -> Iterator[Layout]:
    """Every layout that the GPUs can be arranged in, the fewest model-parallel GPUs first."""
    tensors = (question.tensor,) if question.tensor else _powers_of_two(_GPUS_OF_A_NODE)
    pipelines = (question.pipeline,) if question.pipeline else range(1, min(model.layers, question.gpus) + 1)
    degrees = sorted(
        ((tensor, pipeline) for tensor in tensors for pipeline in pipelines),
        key=lambda pair: (pair[0] * pair[1], pair[1]),
    )
    for tensor, pipeline in degrees:
        if (
            question.gpus % (tensor * pipeline * (question.context or 1))
            or model.heads % tensor
            or model.layers % (pipeline * (question.virtual or 1))
        ):
            continue
        for checkpointing in _checkpointings(question):
            for zero in _stages(question, pipeline):
                yield _layout(question, tensor, pipeline, zero, checkpointing)


def _powers_of_two(largest: int) -> tuple[int, ...]:
    return tuple(2**power for power in range(largest.bit_length()))


def _checkpointings(question: Question) -> Sequence[Checkpointing]:
    if question.checkpointing:
        return (question.checkpointing,)
    if question.attention is Attention.FLASH:
        return (
            Checkpointing.NONE,
            Checkpointing.FULL,
        )  # selective recomputation drops what flash attention never keeps
    return (Checkpointing.NONE, Checkpointing.SELECTIVE, Checkpointing.FULL)


def _stages(question: Question, pipeline: int) -> Sequence[int]:
    if question.zero is not None:
        return (question.zero,)
    # DeepSpeed's pipeline engine takes stages 0 and 1 alone: gradients of many micro-batches stay whole.
    return range(LAST_STAGE + 1) if pipeline == 1 else range(2)


def _layout(question: Question, tensor: int, pipeline: int, zero: int, checkpointing: Checkpointing) -> Layout:
    context = question.context or 1
    data = question.gpus // (tensor * pipeline * context)
    micro_batch = question.micro_batch or DEFAULT_MICRO_BATCH
    batches = None
    if question.global_batch:
        batches = max(1, question.global_batch // (data * micro_batch))
    return Layout(
        data=data,
        tensor=tensor,
        pipeline=pipeline,
        zero=zero,
        checkpointing=checkpointing,
        micro_batch=micro_batch,
        expert=question.expert or 1,
        sequence_parallel=question.sequence_parallel,
        micro_batches=batches,
        offload=question.offload,
        loss=question.loss,
        context=context,
        virtual=question.virtual or 1 if pipeline > 1 else 1,
    )
