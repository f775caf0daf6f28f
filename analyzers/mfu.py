"""MFU and HFU of a run, from what the hooks saw: the model's shapes, the tokens of a step, the time and the GPU.

MFU = operations per token x tokens a second / (GPUs x dense peak), by each of the conventions. The headline is
``megatron_core``, which counts what a causal model needs: weights of products, half of the attention matrix, no
embedding table and no recomputation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfscope.analyzers import steps as step_times
from perfscope.analyzers.comparison import Convention, Step, compare
from perfscope.analyzers.conventions import Checkpointing
from perfscope.analyzers.model_inference import infer
from perfscope.analyzers.spread import explain
from perfscope.errors import MissingInput
from perfscope.hardware import Gpu, look_up, not_known
from perfscope.report import Column, Json, Section
from perfscope.tables import Run, Steps
from perfscope.tables.model import Model, Weight
from perfscope.transformer import Transformer, active_parameters, total_parameters

HEADLINE = "megatron_core"
_NS_PER_S = 10**9
_SAME_SIZE = 0.02
_CAPPED = 0.98


@dataclass(frozen=True, slots=True)
class StepUse:
    """One undisturbed step: its number, TFLOPs per GPU and MFU by the headline convention."""

    step: int
    tflops_per_gpu: float
    mfu: float | None


@dataclass(frozen=True, slots=True)
class Utilisation:
    """How much of what the GPUs can do the run used.

    Attributes:
        conventions: The median step by every convention.
        steps: Each undisturbed step by the headline convention.
        model: The dimensions that were counted.
        parameters, trainable: Of the whole model.
        device: What the GPU calls itself; absent where unknown.
        gpu: What it can do; absent where it is not listed.
        dtype: The number format of the peak.
        peak_tflops: The dense peak; absent without one.
        checkpointing: What was counted as recomputed.
        notes: What a reader must know.
    """

    conventions: tuple[Convention, ...]
    steps: tuple[StepUse, ...]
    model: Transformer
    parameters: int
    trainable: int
    device: str | None
    gpu: Gpu | None
    dtype: str
    peak_tflops: float | None
    checkpointing: Checkpointing
    notes: tuple[str, ...]

    @property
    def headline(self) -> Convention:
        """The median step by the headline convention."""
        return next(each for each in self.conventions if each.name == HEADLINE)

    def data(self) -> Json:
        """The value of ``results.mfu``."""
        return {
            "convention": HEADLINE,
            "mfu": self.headline.mfu,
            "tflops_per_gpu": self.headline.tflops_per_gpu,
            "conventions": [each.data() for each in self.conventions],
            "steps": [
                {"step": each.step, "tflops_per_gpu": each.tflops_per_gpu, "mfu": each.mfu} for each in self.steps
            ],
            "parameters": self.parameters,
            "trainable_parameters": self.trainable,
            "layers": self.model.layers,
            "hidden": self.model.hidden,
            "vocabulary": self.model.vocabulary,
            "device": self.device,
            "gpu": self.gpu.name if self.gpu else None,
            "dtype": self.dtype,
            "peak_tflops": self.peak_tflops,
            "checkpointing": str(self.checkpointing),
            "notes": list(self.notes),
        }

    def sections(self) -> tuple[Section, ...]:
        """The conventions side by side, under the notes on what was counted."""
        columns = (
            Column("Convention"),
            Column("GFLOP per token", 4),
            Column("TFLOPs per GPU", 3),
            Column("MFU (%)", 2),
            Column("HFU (%)", 2),
        )
        rows = tuple(
            (
                each.name,
                None if each.flops_per_token is None else each.flops_per_token / 1e9,
                each.tflops_per_gpu,
                None if each.mfu is None else 100 * each.mfu,
                None if each.hfu is None else 100 * each.hfu,
            )
            for each in self.conventions
        )
        return (Section("MFU of the median step", columns, rows, self.notes),)


def analyze(run: Run) -> Utilisation:
    """Compute the utilisation of a run.

    Raises:
        MissingInput: No rank told its model, the model cannot be counted, or tokens or times are not known.
    """
    times = step_times.analyze(run)
    model, parameters, trainable, about = _model(run)
    tokens, seq_len = _tokens_of_a_step(times)
    if times.median_s is None:
        raise MissingInput("every step was disturbed by start-up or a window, so there is no time to compute with")
    gpus = max(rank.world_size for rank in run.ranks)
    device, gpu, dtype, peak_tflops, about_peak = _peak(run)
    checkpointing = _checkpointing(run.models)
    step = Step(
        parameters=active_parameters(model),
        model=model,
        tokens=tokens,
        seq_len=seq_len,
        checkpointing=checkpointing,
        step_ns=round(times.median_s * _NS_PER_S),
        gpus=gpus,
        peak_tflops=peak_tflops,
    )
    conventions = compare(step)
    return Utilisation(
        conventions=conventions,
        steps=_each_step(run.steps, step, conventions),
        model=model,
        parameters=parameters,
        trainable=trainable,
        device=device,
        gpu=gpu,
        dtype=dtype,
        peak_tflops=peak_tflops,
        checkpointing=checkpointing,
        notes=(*about, *about_peak, *_about_recomputation(run.models, checkpointing), *explain(step, conventions)),
    )


def _model(run: Run) -> tuple[Transformer, int, int, list[str]]:
    """The whole model: its dimensions, parameters, trainable ones, and how they were found."""
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
        return first.transformer, parameters, trainable, [*notes, f"Dimensions: the config of {name}."]
    if any(coordinates.get(model.rank, {}).get("tp", 0) for model in run.models):
        raise MissingInput("the model is split by tensor parallelism and does not name its dimensions")
    model = infer(_merged(parts), name)
    notes.append(
        f"Dimensions: from the shapes of {name}'s parameters: {model.layers} layers, hidden size {model.hidden}, "
        f"vocabulary {model.vocabulary}; attention is counted for as many dimensions as the hidden size."
    )
    return model, parameters, trainable, notes


def _merged(parts: Sequence[Model]) -> list[Weight]:
    """The weights of all pipeline stages as those of one model."""
    counts: dict[tuple[str, bool, tuple[int, ...]], int] = {}
    for model in parts:
        for weight in model.weights:
            key = (weight.name, weight.is_embedding, weight.shape)
            counts[key] = counts.get(key, 0) + weight.count
    return [Weight(*key, count) for key, count in counts.items()]


def _tokens_of_a_step(times: step_times.StepTimes) -> tuple[int, int]:
    """Tokens of a step over all GPUs, and tokens in a sequence."""
    known = [rank for rank in times.ranks if rank.tokens and rank.samples]
    if times.tokens_per_s is None or times.median_s is None or not known:
        raise MissingInput("how many tokens a step has is not known: the model's input was no table of whole numbers")
    assert known[0].tokens is not None
    assert known[0].samples is not None
    return round(times.tokens_per_s * times.median_s), max(1, round(known[0].tokens / known[0].samples))


def _peak(run: Run) -> tuple[str | None, Gpu | None, str, float | None, list[str]]:
    """The device, what it can do, and what limits it."""
    devices = {rank.device_name for rank in run.ranks if rank.device_type != "cpu" and rank.device_name}
    dtype = next((model.dtype for model in run.models if model.dtype), None) or "bf16"
    if not devices:
        return None, None, dtype, None, ["No MFU: the run had no GPU."]
    if len(devices) > 1:
        return None, None, dtype, None, [f"No MFU: the GPUs differ: {', '.join(sorted(devices))}."]
    (device,) = devices
    gpu = look_up(device)
    if gpu is None:
        return device, None, dtype, None, [f"No MFU: {not_known(device)}."]
    if dtype not in gpu.dense_tflops:
        return device, gpu, dtype, None, [f"No MFU: {gpu.name} has no peak in {dtype}."]
    peak = gpu.dense_tflops[dtype]
    notes = [f"Peak of {gpu.name} in {dtype}: {peak:g} TFLOP/s dense ({gpu.source})."]
    limits = [samples.power_limit_mw / 1e3 for samples in run.gpus if samples.power_limit_mw]
    if limits and gpu.power_w and min(limits) < _CAPPED * gpu.power_w:
        notes.append(f"Power is capped at {min(limits):.0f} W of {gpu.power_w} W, so that the peak cannot be reached.")
    return device, gpu, dtype, peak, notes


def _checkpointing(models: Sequence[Model]) -> Checkpointing:
    seen = next((model.checkpointing for model in models if model.checkpointing), None)
    return Checkpointing(seen) if seen else Checkpointing.NONE


def _about_recomputation(models: Sequence[Model], counted: Checkpointing) -> tuple[str, ...]:
    if any(model.checkpointing for model in models):
        return (f"Activation checkpointing `{counted}`, as the model says.",)
    return ("No activation checkpointing was seen, so none is counted.",)


def _each_step(tables: Sequence[Steps], step: Step, conventions: Sequence[Convention]) -> tuple[StepUse, ...]:
    """The undisturbed steps by the headline convention; the slowest rank decides."""
    per_token = next(each.flops_per_token for each in conventions if each.name == HEADLINE)
    assert per_token is not None
    slowest: dict[int, int] = {}
    for table in tables:
        undisturbed = (table.window == "") & (table.step > 1) & ~table.wall_ns.mask
        for number, wall_ns in zip(table.step[undisturbed], table.wall_ns[undisturbed], strict=True):
            slowest[int(number)] = max(slowest.get(int(number), 0), int(wall_ns))
    timed = {number: step._replace(step_ns=wall_ns) for number, wall_ns in sorted(slowest.items())}
    return tuple(
        StepUse(number, one.tflops_per_gpu(per_token), one.utilisation(per_token)) for number, one in timed.items()
    )
