"""The plan itself: the duration, the memory of each layout, and the layouts that fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from perfscope.analyzers.plan import (
    LAST_STAGE,
    Attention,
    Duration,
    Loss,
    MemoryEstimate,
    ParallelLayout,
    StateBytes,
    StatePrecision,
    estimate_memory,
    solve_duration,
)
from perfscope.analyzers.tflops.comparison import Convention, Step, compare
from perfscope.commands.model import ModelChoice, Peak
from perfscope.commands.plan.options import LayoutOptions, PlanInputs
from perfscope.constants import NS_PER_S
from perfscope.errors import UsageError
from perfscope.measures.doubt import UTILISATION_CAUSES, check_share
from perfscope.models.conventions import Checkpointing
from perfscope.models.hardware import Gpu
from perfscope.models.step_constants import find_node
from perfscope.models.transformer import Mixing, Transformer
from perfscope.sources.models.presets import find_preset
from perfscope.units import format_parameters

#: The fewest tokens of a sequence that a context-parallel rank is given.
_SHORT_SEQUENCE = 4_096
#: Software whose loss is that of tensor-parallel ranks, also of one.
_SHARDED_LOSS = (StatePrecision.MEGATRON, StatePrecision.NANOTRON)
#: What layers keep for the backward pass is known of these kinds.
_KNOWN_LAYERS = {Mixing.WINDOW, Mixing.CHUNK, Mixing.MAMBA, Mixing.NONE}
#: Most layers that stages may lack.
_OTHER_PLACES = 3


def check_layout(inputs: PlanInputs, model: Transformer) -> None:
    """Refuse degrees that do not divide what they split, and layers whose activations are not known (UsageError)."""
    layout = inputs.layout
    unknown = {str(mixer.kind) for mixer in model.mixers} - _KNOWN_LAYERS
    if unknown:
        kinds = ", ".join(sorted(unknown))
        raise UsageError(f"what layers of {model.name} keep for the backward pass is not known ({kinds})")
    tensor, pipeline, context, virtual = map(layout.size, ("tp", "pp", "cp", "virtual_stages"))
    if layout.zero is not None and layout.zero not in range(LAST_STAGE + 1):
        raise UsageError(f"the stage of ZeRO is 0 to {LAST_STAGE}, not {layout.zero}")
    if inputs.gpus % _model_parallel_gpus(inputs):
        degrees, options = f"{tensor} x {pipeline}", "--tp, --pp"
        if context > 1:
            degrees, options = f"{degrees} x {context}", f"{options}, --cp"
        raise UsageError(f"{inputs.gpus} GPUs do not divide into groups of {degrees} ({options})")
    if inputs.seq_len % context:
        raise UsageError(f"a sequence of {inputs.seq_len} tokens does not divide over {context} ranks (--cp)")
    if virtual > 1 and (pipeline == 1 or not _fill_stages(model, pipeline * virtual)):
        undivided = f"{model.layers} layers do not divide into {pipeline} x {virtual} virtual stages"
        alone = f"--virtual-stages {virtual} is given without a pipeline"
        raise UsageError(f"{alone} (--pp)" if pipeline == 1 else f"{undivided} (--pp, --virtual-stages)")
    if model.heads % tensor:
        raise UsageError(f"{model.heads} heads do not divide into {tensor} tensor-parallel ranks")
    if pipeline > model.layers:
        raise UsageError(f"{model.layers} layers do not fill {pipeline} pipeline stages")
    expert = layout.size("ep")
    if model.experts is None:
        if expert > 1:
            raise UsageError(f"--ep {expert} is given for a model without experts")
    elif model.experts.routed % expert or inputs.gpus // pipeline % expert:
        raise UsageError(f"{model.experts.routed} experts do not divide over {expert} ranks of a stage (--ep)")


def _model_parallel_gpus(inputs: PlanInputs) -> int:
    return inputs.layout.size("tp") * inputs.layout.size("pp") * inputs.layout.size("cp")


def check_batches(inputs: PlanInputs) -> None:
    """Refuse a global batch that the typed layout does not divide into micro-batches (UsageError)."""
    layout = inputs.layout
    if layout.gbs is None or not any((layout.tp, layout.pp, layout.cp, layout.micro_batch)):
        return
    replicas, micro_batch = max(1, inputs.gpus // _model_parallel_gpus(inputs)), layout.size("micro_batch")
    if layout.gbs % (replicas * micro_batch):
        raise UsageError(
            f"a global batch of {layout.gbs} does not divide into micro-batches of {micro_batch} on {replicas} "
            "data-parallel ranks"
        )


def typed_layouts(inputs: PlanInputs) -> Iterator[ParallelLayout]:
    """The layouts of the typed degrees: with every ZeRO stage and checkpointing where these are not typed."""
    tensor, pipeline = inputs.layout.size("tp"), inputs.layout.size("pp")
    for checkpointing in _candidate_checkpointing(inputs):
        for zero in _candidate_stages(inputs, pipeline):
            yield _make_layout(inputs, tensor, pipeline, zero, checkpointing)


def possible_layouts(inputs: PlanInputs, model: Transformer, gpu: Gpu) -> Iterator[ParallelLayout]:
    """Every layout that the GPUs can be arranged in, the fewest model-parallel GPUs first."""
    typed = inputs.layout
    for tensor, pipeline in possible_degrees(inputs, model, gpu, typed.size("cp")):
        if not _fill_stages(model, pipeline * typed.size("virtual_stages")):
            continue
        for checkpointing in _candidate_checkpointing(inputs):
            for zero in _candidate_stages(inputs, pipeline):
                yield _make_layout(inputs, tensor, pipeline, zero, checkpointing)


def possible_degrees(inputs: PlanInputs, model: Transformer, gpu: Gpu, context: int) -> Iterator[tuple[int, int]]:
    """Every pipeline-parallel size, and tensor-parallel one in a node, that divides; the smallest products first."""
    typed = inputs.layout
    tensor_sizes = (typed.tp,) if typed.tp else powers_of_two(find_node(gpu).gpus)
    pipeline_sizes = (typed.pp,) if typed.pp else range(1, min(model.layers, inputs.gpus) + 1)
    degrees = sorted(
        ((tensor, pipeline) for tensor in tensor_sizes for pipeline in pipeline_sizes),
        key=lambda pair: (pair[0] * pair[1], pair[1]),
    )
    for tensor, pipeline in degrees:
        undivided = inputs.gpus % (tensor * pipeline * context) or inputs.gpus // pipeline % typed.size("ep")
        if not (undivided or model.heads % tensor) and _fill_stages(model, pipeline):
            yield tensor, pipeline


def _fill_stages(model: Transformer, stages: int) -> bool:
    """Whether layers fill stages but for the places that the embedding, the output and a prediction layer take.

    Llama 3 405B has 126 layers in 128 places (arXiv 2407.21783, section 3.3.2), DeepSeek-V3 61 in 64.
    """
    return -model.layers % stages <= min(_OTHER_PLACES, stages - 1)


def powers_of_two(most: int) -> Sequence[int]:
    """1, 2, 4 and so on, up to a number."""
    return [2**power for power in range(max(1, most).bit_length())]


def possible_batches(inputs: PlanInputs, model: Transformer, gpu: Gpu, gbs: int) -> Iterator[ParallelLayout]:
    """Every layout with each micro-batch, interleaving, context- and expert-parallel size that a batch allows."""
    typed = inputs.layout
    for context in [typed.cp] if typed.cp else powers_of_two(inputs.seq_len // _SHORT_SEQUENCE):
        for tensor, pipeline in possible_degrees(inputs, model, gpu, context) if inputs.seq_len % context == 0 else ():
            data = inputs.gpus // (tensor * pipeline * context)
            stages = _candidate_stages(inputs, pipeline)
            if data * context == 1:
                stages = stages[:1]  # one replica has nothing to shard
            for layout in _spread_batch(inputs, model, gbs, data, pipeline, context):
                for checkpointing in _candidate_checkpointing(inputs):
                    for zero in stages:
                        yield _make_layout(
                            replace(inputs, layout=layout._replace(cp=context)), tensor, pipeline, zero, checkpointing
                        )


def _spread_batch(
    inputs: PlanInputs, model: Transformer, gbs: int, data: int, pipeline: int, context: int
) -> Iterator[LayoutOptions]:
    """The micro-batch, virtual stages and expert-parallel size of each way to spread a batch over replicas.

    Where ranks split sequences, a micro-batch is one: ranks that split two have as many tokens as ranks with one whole.
    """
    typed = inputs.layout
    largest = gbs // data if gbs % data == 0 else 0
    experts, stage_gpus = model.experts.routed if model.experts else 1, inputs.gpus // pipeline
    spread = [typed.ep] if typed.ep else powers_of_two(min(experts, stage_gpus))
    micro_batches = range(1, largest + 1) if context == 1 else [1]
    for micro_batch in [typed.micro_batch] if typed.micro_batch else micro_batches:
        if largest < micro_batch or largest % micro_batch:
            continue
        # Interleaving takes whole rounds of micro-batches (Narayanan et al. 2021, section 2.2).
        in_rounds = pipeline > 1 and largest // micro_batch % pipeline == 0
        stages = range(1, -(-model.layers // pipeline) + 1) if in_rounds else [1]
        for virtual in [typed.virtual_stages] if typed.virtual_stages else stages:
            for expert in spread if _fill_stages(model, pipeline * virtual) else ():
                if not (experts % expert or stage_gpus % expert):
                    yield typed._replace(micro_batch=micro_batch, virtual_stages=virtual, ep=expert)


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


def _make_layout(
    inputs: PlanInputs, tensor: int, pipeline: int, zero: int, checkpointing: Checkpointing
) -> ParallelLayout:
    typed = inputs.layout
    micro_batch, context = typed.size("micro_batch"), typed.size("cp")
    data = inputs.gpus // (tensor * pipeline * context)
    is_split = max(tensor, pipeline, context, typed.size("ep")) > 1
    return ParallelLayout(
        data=data,
        tensor=tensor,
        pipeline=pipeline,
        zero=zero,
        checkpointing=checkpointing,
        micro_batch=micro_batch,
        expert=typed.size("ep"),
        sequence_parallel=typed.sequence_parallel,
        micro_batches=max(1, typed.gbs // (data * micro_batch)) if typed.gbs else None,
        loss=inputs.memory.loss or (Loss.SHARDED if is_split or inputs.memory.states in _SHARDED_LOSS else Loss.PLAIN),
        context=context,
        virtual=typed.size("virtual_stages") if pipeline > 1 else 1,
    )


def assume_shape(parameters: int) -> tuple[Transformer, str]:
    """A GPT-3 with fewer or more layers and as many heads, and a note that says so."""
    gpt3 = find_preset("gpt3-175b")
    assert gpt3 is not None
    layers = max(1, round((parameters / (12 * gpt3.transformer.head_dim**2)) ** (1 / 3)))
    hidden = gpt3.transformer.head_dim * layers
    model = gpt3.transformer._replace(
        name=format_parameters(parameters),
        layers=layers,
        hidden=hidden,
        heads=layers,
        kv_heads=layers,
        ffn=4 * hidden,
        layer_vectors=0,
        other_vectors=0,
    )
    return model, f"a GPT of {layers} layers and hidden size {hidden}, because only the size is given (--model)"


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """A plan of a training run.

    ``shape`` are the model's dimensions; where only a size is known they are assumed, as ``shape_note`` says.
    ``recomputes``: the convention of the speed counts recomputation. ``fitting`` is None where the GPU is unknown.
    """

    inputs: PlanInputs
    choice: ModelChoice
    shape: Transformer
    shape_note: str
    peak: Peak
    duration: Duration
    recomputes: bool
    memory: tuple[MemoryEstimate, ...]
    fitting: tuple[MemoryEstimate, ...] | None

    @property
    def utilisation(self) -> float | None:
        """The planned speed as a share of the peak; None where either is unknown, and where no run reaches it."""
        return check_share(self.share_of_peak, "the planned MFU", UTILISATION_CAUSES).value

    @property
    def share_of_peak(self) -> float | None:
        """The planned speed over the peak, however large; None where either is unknown."""
        if self.duration.tflops_per_gpu is None or self.peak.tflops is None:
            return None
        return self.duration.tflops_per_gpu / self.peak.tflops

    @property
    def has_configurations(self) -> bool:
        """Whether configurations are listed: the batch and the GPU are known."""
        return self.inputs.layout.gbs is not None and self.peak.gpu is not None

    @property
    def checkpoint_bytes(self) -> int:
        """The size of a checkpoint: weights and optimizer."""
        return self.choice.total_parameters * self.precision.checkpoint

    @property
    def precision(self) -> StateBytes:
        """Bytes per parameter of each state."""
        return precision_of(self.inputs, self.choice.transformer, self.peak.dtype)


def make_plan(inputs: PlanInputs, choice: ModelChoice, peak: Peak) -> TrainingPlan:
    """Compute the plan; UsageError where degrees do not divide, or the convention needs dimensions that are unknown.

    Where configurations are listed tensor parallelism splits along the sequence, too: it costs no bytes, saves memory.
    """
    if inputs.layout.gbs is not None and peak.gpu is not None:
        inputs = replace(inputs, layout=inputs.layout._replace(sequence_parallel=True))
    shape, shape_note = (choice.transformer, "") if choice.transformer else assume_shape(choice.active_parameters)
    check_layout(inputs, shape)
    convention, target = find_convention(inputs, choice, inputs.target.convention), inputs.target
    if convention.flops_per_token is None:
        raise UsageError(
            f"the convention {convention.name} needs the dimensions of the model",
            hint="give --model llama3-8b, a config.json, or layers=32,hidden=4096,heads=32,vocab=32000",
        )
    duration = solve_duration(
        convention.flops_per_token, target.tokens, inputs.gpus, target.tflops_per_gpu, target.seconds
    )
    return TrainingPlan(
        inputs=inputs,
        choice=choice,
        shape=shape,
        shape_note=shape_note,
        peak=peak,
        duration=duration,
        recomputes=convention.counts_recomputation,
        memory=tuple(estimate_layout(inputs, choice, shape, peak.dtype, layout) for layout in typed_layouts(inputs)),
        fitting=_find_fitting(inputs, choice, shape, peak),
    )


def find_convention(inputs: PlanInputs, choice: ModelChoice, name: str) -> Convention:
    """What a token costs by a convention."""
    step = Step(
        parameters=choice.active_parameters,
        model=choice.transformer,
        tokens=1,
        seq_len=inputs.seq_len,
        checkpointing=inputs.checkpointing,
        step_ns=NS_PER_S,
        gpus=inputs.gpus,
        peak_tflops=None,
    )
    return next(convention for convention in compare(step) if convention.name == name)


def precision_of(inputs: PlanInputs, model: Transformer | None, dtype: str) -> StateBytes:
    """Bytes per parameter of each state; frozen weights have neither gradients nor an optimizer."""
    precision = inputs.precision(dtype)
    return replace(precision, gradients=0, optimizer=0) if model and not model.trained else precision


def estimate_layout(
    inputs: PlanInputs, choice: ModelChoice, shape: Transformer, dtype: str, layout: ParallelLayout
) -> MemoryEstimate:
    """Estimate the memory of a layout."""
    return estimate_memory(
        shape,
        layout,
        parameters=choice.total_parameters,
        seq_len=inputs.seq_len,
        precision=precision_of(inputs, shape, dtype),
        attention=inputs.memory.attention,
    )


def _find_fitting(
    inputs: PlanInputs, choice: ModelChoice, shape: Transformer, peak: Peak
) -> tuple[MemoryEstimate, ...] | None:
    if peak.gpu is None:
        return None
    fitting: dict[tuple[Checkpointing, int], MemoryEstimate] = {}
    for layout in possible_layouts(inputs, shape, peak.gpu):
        key = (layout.checkpointing, layout.zero)
        if key in fitting:
            continue
        memory = estimate_layout(inputs, choice, shape, peak.dtype, layout)
        if memory.reserved <= peak.gpu.memory_bytes:
            fitting[key] = memory
    order = (Checkpointing.NONE, Checkpointing.SELECTIVE, Checkpointing.FULL)
    return tuple(fitting[key] for key in sorted(fitting, key=lambda key: (order.index(key[0]), key[1])))
