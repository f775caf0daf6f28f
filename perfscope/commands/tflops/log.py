"""The log of the step of ``perfscope tflops``: the values that it supplies, and the convention of its own TFLOPs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from perfscope.analyzers.flops.comparison import Convention, Step
from perfscope.analyzers.flops.log_match import Allowed, LogMatch, match_log
from perfscope.commands.options.peaks import Dtype
from perfscope.commands.options.training import DEFAULT_SEQ_LEN
from perfscope.commands.tflops.comparison import Comparison
from perfscope.commands.tflops.inputs import StepInputs
from perfscope.constants import GIB, GIGA, NS_PER_S, TERA
from perfscope.errors import UsageError
from perfscope.models.conventions import Checkpointing
from perfscope.models.parameter_counts import total_parameters
from perfscope.models.transformer import ModelDescription, Transformer
from perfscope.report import Json
from perfscope.sources.joblog.megatron_log import TrainingLog, read_megatron_log
from perfscope.units import format_parameters

_GIBI = GIB / GIGA
_WHOLE_BILLION = 0.6


class StepLog(NamedTuple):
    """A log of the step."""

    log: TrainingLog

    @property
    def model(self) -> ModelDescription | None:
        """The model that the log describes; None where it prints no arguments."""
        return self.log.model

    def supply(self, inputs: StepInputs) -> StepInputs:
        """Take missing values from the log.

        Raises:
            UsageError: The log has no iteration line, and no time was typed.
        """
        steady_steps = self.log.steps[1:] or self.log.steps  # the first step pays for start-up
        supplied = StepInputs(
            samples=self.log.number("global_batch_size")
            or next((step.samples for step in self.log.steps if step.samples), None),
            step_ns=_median([step.step_ns for step in steady_steps if step.step_ns]),
            gpus=self.log.number("world_size"),
            seq_len=self.log.number("seq_length"),
            checkpointing=_checkpointing(self.log),
            dtype=_dtype(self.log),
        )
        inputs = inputs.fill_missing(supplied, self.log.path)
        if inputs.step_ns is not None:
            return inputs
        tokens_per_s_per_gpu = _median(
            [step.tokens_per_s_per_gpu for step in steady_steps if step.tokens_per_s_per_gpu]
        )
        if tokens_per_s_per_gpu is None:
            raise UsageError(f"{self.log.path} has no iteration line, so --time is missing")
        return _supply_from_rate(inputs, tokens_per_s_per_gpu)

    def compare(self, step: Step, conventions: Sequence[Convention]) -> Comparison:
        """Find the convention that the log's own TFLOPs follow."""
        candidates = [convention for convention in conventions if "+" not in convention.name]
        likely_first = sorted(candidates, key=lambda convention: convention.name not in _LIKELY[self.log.framework])
        log_match = match_log(_list_allowed(self.log, step), likely_first)
        mistakes = _find_size_mistakes(self.log, step.model)
        data: Json = {
            "path": self.log.path,
            "framework": self.log.framework,
            "label": self.log.label or None,
            "steps": len(self.log.steps),
            "steps_with_tflops": log_match.lines if log_match else 0,
            "convention": log_match.convention if log_match else None,
            "nearest": log_match.nearest if log_match else None,
            "deviation_from_nearest": log_match.nearest_deviation if log_match else None,
            "notes": list(mistakes),
        }
        notes = (_describe_match(self.log, log_match), *mistakes)
        return Comparison(data, notes, log_match.convention if log_match else None)


def read_step_log(path: Path) -> StepLog:
    """Read a log of Megatron-LM, Megatron-DeepSpeed or torchtitan.

    Raises:
        SourceError: The file cannot be read.
        UsageError: It is no such log, or its arguments contradict each other.
    """
    return StepLog(read_megatron_log(path))


def _median(values: Sequence[int]) -> int | None:
    if not values:
        return None
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) // 2


def _supply_from_rate(inputs: StepInputs, tokens_per_s_per_gpu: int) -> StepInputs:
    """Work out the step of a log that states tokens/s per GPU: any batch and number of GPUs give the same TFLOPs."""
    samples, gpus, seq_len = inputs.samples or 1, inputs.gpus or 1, inputs.seq_len or DEFAULT_SEQ_LEN
    step_ns = samples * seq_len * NS_PER_S // (tokens_per_s_per_gpu * gpus)
    phrase = f"{tokens_per_s_per_gpu} tokens/s per GPU, the median of the log"
    return inputs._replace(samples=samples, gpus=gpus, step_ns=step_ns, read=(*inputs.read, phrase))


def _checkpointing(log: TrainingLog) -> Checkpointing | None:
    """What the arguments say; Megatron recomputes nothing by default."""
    if not log.arguments:
        return None
    granularity = log.arguments.get("recompute_granularity", "None")
    if granularity in ("full", "selective"):
        return Checkpointing(granularity)
    if log.arguments.get("checkpoint_activations") == "True":
        return Checkpointing.FULL
    return Checkpointing.SELECTIVE if log.arguments.get("recompute_activations") == "True" else Checkpointing.NONE


def _dtype(log: TrainingLog) -> Dtype | None:
    named = log.arguments.get("params_dtype", "").removeprefix("torch.")
    if log.arguments.get("fp8", "None") not in ("None", "False", ""):
        return Dtype.FP8
    return {"bfloat16": Dtype.BF16, "float16": Dtype.FP16, "float32": Dtype.FP32}.get(named)


def _list_allowed(log: TrainingLog, step: Step) -> list[Allowed]:
    """The operations per token that each line of a log allows."""
    allowed = []
    for line in log.steps:
        if line.tflops is None:
            continue
        low, high = line.tflops - line.resolution / 2, line.tflops + line.resolution / 2
        if line.tokens_per_s_per_gpu:
            rate = line.tokens_per_s_per_gpu
            allowed.append(Allowed(line.step, low * TERA / (rate + 0.5), high * TERA / (rate - 0.5)))
        elif line.step_ns:
            tokens = line.samples * step.seq_len if line.samples else step.tokens
            scale = step.gpus * TERA / NS_PER_S / tokens
            half = line.step_resolution_ns / 2
            allowed.append(
                Allowed(line.step, low * scale * (line.step_ns - half), high * scale * (line.step_ns + half))
            )
    return allowed


def _find_size_mistakes(log: TrainingLog, model: Transformer | None) -> tuple[str, ...]:
    """Say where a log states a size in G of 2**30 as if it were B of 10**9."""
    if model is None:
        return ()
    parameters = total_parameters(model)
    billions = parameters / GIGA
    return tuple(
        f"the log says `Model size: {size:g}B`, counted in G of 2**30; in B of 10**9 it is "
        f"{format_parameters(parameters)}"
        for size in log.claimed_sizes
        if abs(size - billions / _GIBI) <= _WHOLE_BILLION < abs(size - billions)
    )


#: The conventions that a framework's log is likely to use, tried first.
_LIKELY = {
    "megatron": {"megatron_core", "megatron_before_2025", "bigscience_code"},
    "torchtitan": {"torchtitan"},
}


def _describe_match(log: TrainingLog, log_match: LogMatch | None) -> str:
    if log_match is None:
        return f"{log.path} prints no TFLOPs to compare with."
    if log_match.convention:
        return (
            f"`{log.label}` is `{log_match.convention}`: it gives every one of the {log_match.lines} printed figures "
            "within their rounding."
        )
    return (
        f"`{log.label}` is none of these conventions; `{log_match.nearest}` is nearest, the log is "
        f"{log_match.nearest_deviation:+.1%} from it: do the dimensions, the batch or the number of GPUs differ?"
    )
