"""What a run trained, as far as its operations depend on it: model, tokens of a step, GPU and recomputation.

All of it comes from what the hooks recorded; what cannot be known is absent, with the reason in words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from perfscope.analyzers.steps import StepTimes
from perfscope.analyzers.tflops.model_inference import expert_elements, hides_experts, infer_dimensions
from perfscope.analyzers.tflops.operation_counts import TracedOperations
from perfscope.analyzers.tflops.precision import HOW_TO_TELL, ProductPrecision, find_precision, peak_of
from perfscope.analyzers.tflops.repeats import largest_repeats
from perfscope.errors import MissingInput
from perfscope.models.conventions import Checkpointing
from perfscope.models.hardware import Gpu, describe_unlisted, lookup_gpu
from perfscope.models.parameter_counts import SAME_SIZE, embedding_parameters, total_parameters
from perfscope.models.transformer import Transformer
from perfscope.tables.model import Model, Weight
from perfscope.tables.run import Run

_UNKNOWN_WIDTH = "; the attention width is taken as the hidden size"


class TrainedModel(NamedTuple):
    """The model of a run, over all of its pipeline stages, and where its dimensions come from."""

    model: Transformer
    parameters: int
    trainable: int
    notes: tuple[str, ...]


class TrainedDevice(NamedTuple):
    """The GPUs of a run: the driver's name, their data sheet, and the dense peak in the precision of the products."""

    name: str | None
    gpu: Gpu | None
    precision: ProductPrecision
    peak_tflops: float | None
    notes: tuple[str, ...]


def find_trained_model(run: Run) -> TrainedModel:
    """The model that a run trained, over all stages; MissingInput where no rank recorded it or it cannot be counted."""
    coordinates = {rank.rank: rank.parallel for rank in run.ranks}
    by_part: dict[tuple[int, int], Model] = {}  # of the ranks that have the same part the first
    for part in sorted(run.models, key=lambda model: model.rank):
        axes = coordinates.get(part.rank, {})
        by_part.setdefault((axes.get("pp", 0), axes.get("tp", 0)), part)
    if not by_part:
        raise MissingInput("no rank recorded which model it trains")
    for axes in coordinates.values():
        stage, tensor_rank = axes.get("pp", 0), axes.get("tp", 0)
        if (stage, tensor_rank) not in by_part:
            raise MissingInput(f"no rank recorded the model of pipeline stage {stage}, tensor rank {tensor_rank}")
    by_part = _drop_copies(by_part)
    parts = list(by_part.values())
    parameters = sum(model.parameters for model in parts)
    trainable = sum(model.trainable for model in parts)
    first = parts[0]
    name = first.name or "the model"
    notes = [f"{first.no_transformer}; the shapes of its parameters are used instead."] if first.no_transformer else []
    if trainable < parameters:
        notes.append(
            f"{parameters - trainable:,} of {parameters:,} parameters are frozen. Gradients of their inputs count, "
            "gradients of themselves do not."
        )
    weights = _merge_weights([(part, tensor_rank == 0) for (_, tensor_rank), part in by_part.items()])
    if first.transformer and _is_same_model(first.transformer, parameters, weights):
        model = first.transformer
        notes.append(f"Dimensions: the config of {name}.")
    elif any("ep" in axes for axes in coordinates.values()) and hides_experts(weights):
        raise MissingInput(
            f"the experts of {name} are spread over ranks, and no shape shows how many of them a rank holds"
        )
    else:
        is_split = any(tensor_rank for _, tensor_rank in by_part)
        is_whole = not is_split or any(weight.parts > 1 for part in parts for weight in part.weights)
        model, is_width_known = infer_dimensions(weights, name, first.stated, is_whole=is_whole)
        width = f", attention width {model.value_dim}"
        notes.append(
            f"Dimensions: from the shapes of {name}'s parameters: {model.layers} layers, hidden size {model.hidden}, "
            f"vocabulary {model.vocabulary}{width if is_width_known else _UNKNOWN_WIDTH}."
        )
    # Experts that this replica lacks; a config may not state every vector.
    lacking = total_parameters(model) - parameters
    elsewhere = lacking if model.experts and abs(lacking) > SAME_SIZE * parameters else 0
    looked_up = 0 if model.tied else embedding_parameters(model)
    model = model._replace(trained=min(1.0, trainable / max(1, parameters - looked_up)))
    return TrainedModel(model, parameters + elsewhere, trainable + elsewhere, tuple(notes))


def _is_same_model(model: Transformer, parameters: int, weights: Sequence[Weight]) -> bool:
    """Whether a model has as many parameters as were recorded; of its experts each rank may hold a part only."""
    lacking = total_parameters(model) - parameters
    of_experts = expert_elements(weights)
    shares = round(1 + lacking / of_experts) if of_experts else 1
    return abs(lacking - (shares - 1) * of_experts) < SAME_SIZE * total_parameters(model)


def _drop_copies(by_part: Mapping[tuple[int, int], Model]) -> dict[tuple[int, int], Model]:
    """The parts without the embedding tables of an earlier stage: of a tied one each stage that uses it has a copy."""
    seen: set[tuple[int, str]] = set()
    merged = {}
    for (stage, tensor_rank), part in sorted(by_part.items()):
        # Tables whose names differ by a number may be different ones.
        tables = {weight for weight in part.weights if weight.is_embedding and weight.name and "*" not in weight.name}
        copies = {weight for weight in tables if (tensor_rank, weight.name) in seen}
        seen |= {(tensor_rank, weight.name) for weight in tables}
        parameters = part.parameters - sum(copy.elements for copy in copies)
        merged[stage, tensor_rank] = replace(
            part,
            parameters=parameters,
            trainable=min(part.trainable, parameters),
            weights=tuple(weight for weight in part.weights if weight not in copies),
        )
    return merged


def _merge_weights(parts: Sequence[tuple[Model, bool]]) -> list[Weight]:
    """The weights of all ranks of a replica as those of one model; of whole ones only those of ``is_first`` ranks.

    A rank that tensor parallelism put first has the whole shape of every tensor that it splits, and counts all others.
    """
    counts: dict[Weight, int] = {}
    for model, is_first in parts:
        for weight in model.weights:
            if is_first or weight.parts == 1:
                key = replace(weight, count=1, parts=1)
                counts[key] = counts.get(key, 0) + weight.count
    return [replace(weight, count=count) for weight, count in counts.items()]


def count_step_tokens(times: StepTimes) -> tuple[int, int]:
    """Tokens of a step over all GPUs, and tokens in a sequence; MissingInput where they are unknown."""
    rank = next((rank for rank in times.ranks if rank.tokens and rank.samples), None)
    if times.tokens_per_step is None or rank is None:
        raise MissingInput("the number of tokens in a step is unknown: the model's input was not a matrix of token ids")
    assert rank.tokens is not None
    assert rank.samples is not None
    # Over all ranks: those of context parallelism have parts of the sequences that they share.
    length = times.tokens_per_step / times.samples_per_step if times.samples_per_step else rank.tokens / rank.samples
    return round(times.tokens_per_step), max(1, round(length))


def find_device(run: Run, traced: Sequence[TracedOperations] = ()) -> TrainedDevice:
    """The device, and what it can do in the precision of the run."""
    devices = {rank.device_name for rank in run.ranks if rank.device_type != "cpu" and rank.device_name}
    name = next(iter(devices)) if len(devices) == 1 else None
    gpu = lookup_gpu(name) if name else None
    precision = find_precision(run.models, traced, gpu, run.stated.precision)
    peak, reasons = _find_peak(run, sorted(devices), gpu, precision)
    notes = (precision.sentence(),) if precision.by_type else ()
    return TrainedDevice(name, gpu, precision, peak, (*notes, *reasons))


def _find_peak(
    run: Run, devices: Sequence[str], gpu: Gpu | None, precision: ProductPrecision
) -> tuple[float | None, tuple[str, ...]]:
    if run.stated.peak_tflops is not None:
        return run.stated.peak_tflops, (f"Peak: {run.stated.peak_tflops:g} TFLOP/s, given as --peak.",)
    if gpu is None:
        reason = f"the GPUs differ: {', '.join(devices)}" if devices else "the run had no GPU"
        if len(devices) == 1:
            reason = f"{describe_unlisted(devices[0])}; --peak states it"
        return None, (f"No MFU: {reason}.",)
    if not precision.by_type:
        return None, (f"No MFU: {precision.evidence}. {HOW_TO_TELL}.",)
    peak = peak_of(gpu, precision.by_type)
    if peak is None:
        missing = ", ".join(dtype for dtype in precision.by_type if dtype not in gpu.dense_tflops)
        return None, (f"No MFU: {gpu.name} has no peak in {missing}.",)
    if len(precision.by_type) == 1:
        dtype = next(iter(precision.by_type))
        others = (f"{other[0].upper()}{other[1:]}." for other in gpu.describe_others(dtype))
        return peak, (f"Peak of {gpu.name} in {dtype}: {peak:g} TFLOP/s dense ({gpu.source_of(dtype)}).", *others)
    peaks = {dtype: gpu.dense_tflops[dtype] for dtype in precision.by_type if dtype in gpu.dense_tflops}
    parts = ", ".join(f"{tflops:g} in {dtype}" for dtype, tflops in peaks.items())
    return peak, (
        f"Peak of {gpu.name} in this mixture: {peak:.1f} TFLOP/s, the rate at which it does these operations at its "
        f"dense peaks of {parts} ({gpu.source}).",
    )


class Recomputation(NamedTuple):
    """The kind of checkpointing, absent where unknown, and the share of the forward pass's products that ran again."""

    checkpointing: Checkpointing | None
    share: float | None
    notes: tuple[str, ...]


def find_recomputation(models: Sequence[Model], traced: Sequence[TracedOperations] = ()) -> Recomputation:
    """What was recomputed, as the traces show it; where there are none, as the model is configured."""
    seen = next((model.checkpointing for model in models if model.checkpointing), None)
    configured = Checkpointing(seen) if seen in set(Checkpointing) else None
    shown = largest_repeats([operations.repeats for operations in traced])
    if shown is None or (shown.share is None and not shown.is_compiled):
        if configured is not None:
            note = f"Activation checkpointing `{configured}`, as the model is configured."
        elif seen is not None:
            note = "Activation checkpointing is in use. No trace shows what is recomputed, so nothing is counted."
        else:
            configured, note = Checkpointing.NONE, "No activation checkpointing was detected, so none is counted."
        return Recomputation(configured, None, (note,))
    kind = shown.checkpointing
    notes = [
        f"Activation checkpointing is unknown, and none is counted: {shown.reason}."
        if kind is None
        else f"Activation checkpointing `{kind}`, detected in the trace{shown.describe()}."
    ]
    if configured is not None and configured != kind:
        notes.append(f"The model is configured with `{configured}`, which the trace does not show.")
    return Recomputation(kind, shown.share, tuple(notes))
