"""What a run trained, as far as its operations depend on it: model, tokens of a step, GPU and recomputation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perfscope.analyzers.flops.model_inference import infer
from perfscope.analyzers.operations import Operations
from perfscope.analyzers.steps.result import StepTimes
from perfscope.errors import MissingInput
from perfscope.models.conventions import Checkpointing
from perfscope.models.hardware import Gpu, look_up, not_known
from perfscope.models.parameter_counts import total_parameters
from perfscope.models.transformer import Transformer
from perfscope.tables.model import Model, Weight
from perfscope.tables.run import Run

_SAME_SIZE = 0.02
_CAPPED = 0.98


class Trained(NamedTuple):
    """The whole model of a run, over all of its pipeline stages.

    Attributes:
        model: Its dimensions.
        parameters, trainable: Of the whole model.
        notes: How the dimensions were found.
    """

    model: Transformer
    parameters: int
    trainable: int
    notes: tuple[str, ...]


class Device(NamedTuple):
    """What the run's GPUs are and can do.

    Attributes:
        name: What the GPU calls itself; absent where unknown.
        gpu: What it can do; absent where it is not listed.
        dtype: The number format of the products.
        peak_tflops: The dense peak; absent without one.
        notes: Its source, and what limits it.
    """

    name: str | None
    gpu: Gpu | None
    dtype: str
    peak_tflops: float | None
    notes: tuple[str, ...]


def trained_model(run: Run) -> Trained:
    """Find the dimensions of what a run trained.

    Raises:
        MissingInput: No rank told its model, or it cannot be counted.
    """
    coordinates = {rank.rank: rank.parallel for rank in run.ranks}
    replica = [model for model in run.models if coordinates.get(model.rank, {}).get("dp", 0) == 0]
    if not replica:
        raise MissingInput("no rank told what model it trains")
    split = any(coordinates.get(model.rank, {}).get(axis, 0) for model in run.models for axis in ("tp", "pp"))
    parts = replica if split else replica[:1]
    parameters = sum(model.parameters for model in parts)
    trainable = sum(model.trainable for model in parts)
    first = parts[0]
    name = first.name or "the model"
    notes = [f"{first.no_transformer}; its shapes are counted instead."] if first.no_transformer else []
    if trainable < parameters:
        notes.append(f"{parameters - trainable:,} of {parameters:,} parameters are frozen, and counted as trained.")
    if first.transformer and abs(total_parameters(first.transformer) / parameters - 1) < _SAME_SIZE:
        return Trained(first.transformer, parameters, trainable, (*notes, f"Dimensions: the config of {name}."))
    if any(coordinates.get(model.rank, {}).get("tp", 0) for model in run.models):
        raise MissingInput("the model is split by tensor parallelism and does not name its dimensions")
    model = infer(_merged(parts), name)
    notes.append(
        f"Dimensions: from the shapes of {name}'s parameters: {model.layers} layers, hidden size {model.hidden}, "
        f"vocabulary {model.vocabulary}; attention is counted for as many dimensions as the hidden size."
    )
    return Trained(model, parameters, trainable, tuple(notes))


def _merged(parts: Sequence[Model]) -> list[Weight]:
    """The weights of all pipeline stages as those of one model."""
    counts: dict[tuple[str, bool, tuple[int, ...]], int] = {}
    for model in parts:
        for weight in model.weights:
            key = (weight.name, weight.is_embedding, weight.shape)
            counts[key] = counts.get(key, 0) + weight.count
    return [Weight(*key, count) for key, count in counts.items()]


def tokens_of_a_step(times: StepTimes) -> tuple[int, int]:
    """Tokens of a step over all GPUs, and tokens in a sequence.

    Raises:
        MissingInput: They are not known.
    """
    known = [rank for rank in times.ranks if rank.tokens and rank.samples]
    if times.tokens_per_s is None or times.median_s is None or not known:
        raise MissingInput("how many tokens a step has is not known: the model's input was no table of whole numbers")
    assert known[0].tokens is not None
    assert known[0].samples is not None
    return round(times.tokens_per_s * times.median_s), max(1, round(known[0].tokens / known[0].samples))


def device_of(run: Run) -> Device:
    """The device, what it can do, and what limits it."""
    devices = {rank.device_name for rank in run.ranks if rank.device_type != "cpu" and rank.device_name}
    dtype = next((model.dtype for model in run.models if model.dtype), None) or "bf16"
    if not devices:
        return Device(None, None, dtype, None, ("No MFU: the run had no GPU.",))
    if len(devices) > 1:
        return Device(None, None, dtype, None, (f"No MFU: the GPUs differ: {', '.join(sorted(devices))}.",))
    (device,) = devices
    gpu = look_up(device)
    if gpu is None:
        return Device(device, None, dtype, None, (f"No MFU: {not_known(device)}.",))
    if dtype not in gpu.dense_tflops:
        return Device(device, gpu, dtype, None, (f"No MFU: {gpu.name} has no peak in {dtype}.",))
    peak = gpu.dense_tflops[dtype]
    notes = [f"Peak of {gpu.name} in {dtype}: {peak:g} TFLOP/s dense ({gpu.source})."]
    limits = [samples.power_limit_mw / 1e3 for samples in run.gpus if samples.power_limit_mw]
    if limits and gpu.power_w and min(limits) < _CAPPED * gpu.power_w:
        notes.append(f"Power is capped at {min(limits):.0f} W of {gpu.power_w} W, so that the peak cannot be reached.")
    return Device(device, gpu, dtype, peak, tuple(notes))


def recomputation(models: Sequence[Model], traced: Sequence[Operations] = ()) -> tuple[Checkpointing, tuple[str, ...]]:
    """What was recomputed, by the traces where they tell it, else by the model; and how that is known."""
    said = next((model.checkpointing for model in models if model.checkpointing), None)
    seen = next((one.repeats.checkpointing for one in traced if one.repeats.checkpointing), None)
    if seen is None and said is None:
        return Checkpointing.NONE, ("No activation checkpointing was seen, so none is counted.",)
    if seen is None:
        assert said is not None
        return Checkpointing(said), (f"Activation checkpointing `{said}`, as the model says.",)
    notes = [f"Activation checkpointing `{seen}`: the trace shows what ran forward again."]
    if said is not None and said != seen:
        notes.append(f"The model says `{said}`, which the trace does not show.")
    return seen, tuple(notes)
