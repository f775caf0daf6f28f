"""The layouts that a plan looks at: those of the typed degrees, and those that the GPUs can be arranged in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfscope.analyzers.planning.memory import LAST_STAGE, Attention, Layout
from perfscope.commands.plan.inputs import PlanInputs
from perfscope.errors import UsageError
from perfscope.models.conventions import Checkpointing
from perfscope.models.transformer import Transformer

_GPUS_PER_NODE = 8


def check_layout(inputs: PlanInputs, model: Transformer) -> None:
    """Refuse degrees that do not divide what they split.

    Raises:
        UsageError: They do not.
    """
    layout = inputs.layout
    if layout.zero is not None and layout.zero not in range(LAST_STAGE + 1):
        raise UsageError(f"the stage of ZeRO is 0 to {LAST_STAGE}, not {layout.zero}")
    if inputs.gpus % _model_parallel_gpus(inputs):
        degrees, options = f"{layout.tensor} x {layout.pipeline}", "--tp, --pp"
        if layout.context > 1:
            degrees, options = f"{degrees} x {layout.context}", f"{options}, --cp"
        raise UsageError(f"{inputs.gpus} GPUs do not divide into groups of {degrees} ({options})")
    if inputs.seq_len % layout.context:
        raise UsageError(f"a sequence of {inputs.seq_len} tokens does not divide over {layout.context} ranks (--cp)")
    if layout.virtual > 1 and (layout.pipeline == 1 or model.layers % (layout.pipeline * layout.virtual)):
        raise UsageError(
            f"{model.layers} layers do not divide into {layout.pipeline} x {layout.virtual} virtual stages "
            "(--pp, --virtual-stages)"
        )
    if model.heads % layout.tensor:
        raise UsageError(f"{model.heads} heads do not divide into {layout.tensor} tensor-parallel ranks")
    if layout.pipeline > model.layers:
        raise UsageError(f"{model.layers} layers do not fill {layout.pipeline} pipeline stages")
    _check_experts(inputs, model)


def _check_experts(inputs: PlanInputs, model: Transformer) -> None:
    expert = inputs.layout.expert
    if model.experts is None:
        if expert > 1:
            raise UsageError(f"--ep {expert} is given for a model without experts")
    elif model.experts.routed % expert or (inputs.gpus // _model_parallel_gpus(inputs)) % expert:
        raise UsageError(f"{model.experts.routed} experts do not divide over {expert} ranks of each replica (--ep)")


def _model_parallel_gpus(inputs: PlanInputs) -> int:
    """GPUs that hold one replica of the model."""
    return inputs.layout.tensor * inputs.layout.pipeline * inputs.layout.context


def check_batches(inputs: PlanInputs) -> None:
    """Refuse a global batch that does not divide into micro-batches.

    Raises:
        UsageError: It does not.
    """
    layout = inputs.layout
    if layout.gbs is None:
        return
    replicas = max(1, inputs.gpus // _model_parallel_gpus(inputs))
    if layout.gbs % (replicas * layout.micro_batch_size):
        raise UsageError(
            f"a global batch of {layout.gbs} does not divide into micro-batches of "
            f"{layout.micro_batch_size} on {replicas} data-parallel ranks"
        )


def typed_layouts(inputs: PlanInputs) -> Iterator[Layout]:
    """The layouts of the typed degrees: with every ZeRO stage and checkpointing where these are not typed."""
    tensor, pipeline = inputs.layout.tensor, inputs.layout.pipeline
    for checkpointing in _candidate_checkpointing(inputs):
        for zero in _candidate_stages(inputs, pipeline):
            yield _make_layout(inputs, tensor, pipeline, zero, checkpointing)


def possible_layouts(inputs: PlanInputs, model: Transformer) -> Iterator[Layout]:
    """Every layout that the GPUs can be arranged in, the fewest model-parallel GPUs first."""
    typed = inputs.layout
    tensor_sizes = (typed.tp,) if typed.tp else _powers_of_two(_GPUS_PER_NODE)
    pipeline_sizes = (typed.pp,) if typed.pp else range(1, min(model.layers, inputs.gpus) + 1)
    degrees = sorted(
        ((tensor, pipeline) for tensor in tensor_sizes for pipeline in pipeline_sizes),
        key=lambda pair: (pair[0] * pair[1], pair[1]),
    )
    for tensor, pipeline in degrees:
        if (
            inputs.gpus % (tensor * pipeline * typed.context)
            or model.heads % tensor
            or model.layers % (pipeline * typed.virtual)
        ):
            continue
        for checkpointing in _candidate_checkpointing(inputs):
            for zero in _candidate_stages(inputs, pipeline):
                yield _make_layout(inputs, tensor, pipeline, zero, checkpointing)


def _powers_of_two(largest: int) -> tuple[int, ...]:
    return tuple(2**power for power in range(largest.bit_length()))


def _candidate_checkpointing(inputs: PlanInputs) -> Sequence[Checkpointing]:
    if inputs.training.checkpointing:
        return (inputs.training.checkpointing,)
    if inputs.memory.attention is Attention.FLASH:
        # Selective recomputation drops what flash attention never keeps.
        return (Checkpointing.NONE, Checkpointing.FULL)
    return (Checkpointing.NONE, Checkpointing.SELECTIVE, Checkpointing.FULL)


def _candidate_stages(inputs: PlanInputs, pipeline: int) -> Sequence[int]:
    if inputs.layout.zero is not None:
        return (inputs.layout.zero,)
    # DeepSpeed's pipeline engine allows stages 0 and 1 only: it accumulates the gradients of many micro-batches.
    return range(LAST_STAGE + 1) if pipeline == 1 else range(2)


def _make_layout(inputs: PlanInputs, tensor: int, pipeline: int, zero: int, checkpointing: Checkpointing) -> Layout:
    typed = inputs.layout
    data = inputs.gpus // (tensor * pipeline * typed.context)
    return Layout(
        data=data,
        tensor=tensor,
        pipeline=pipeline,
        zero=zero,
        checkpointing=checkpointing,
        micro_batch=typed.micro_batch_size,
        expert=typed.expert,
        sequence_parallel=typed.sequence_parallel,
        micro_batches=max(1, typed.gbs // (data * typed.micro_batch_size)) if typed.gbs else None,
        offload=inputs.offload,
        loss=inputs.memory.loss,
        dropout=inputs.memory.dropout,
        context=typed.context,
        virtual=typed.virtual if pipeline > 1 else 1,
    )
