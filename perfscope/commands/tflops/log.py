"""What ``perfscope tflops`` takes from a log or a DeepSpeed config, and what the log's own figure allows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from perfscope.analyzers.flops.comparison import Convention
from perfscope.analyzers.flops.log_match import Allowed, LogMatch, match_log
from perfscope.commands.options.peaks import Dtype
from perfscope.commands.tflops.inputs import DEFAULT_SEQ_LEN, Asked
from perfscope.constants import NS_PER_S
from perfscope.errors import UsageError
from perfscope.models.conventions import Checkpointing
from perfscope.models.parameter_counts import total_parameters
from perfscope.models.transformer import ModelDescription
from perfscope.report import Json
from perfscope.sources.joblog.megatron_log import LoggedStep, TrainingLog
from perfscope.sources.models.deepspeed_config import read_deepspeed_config
from perfscope.units import format_parameters

_GIBI = 2**30 / 10**9
_WHOLE_BILLION = 0.6


def with_log(asked: Asked, log: TrainingLog) -> Asked:
    """Take from a log what was not typed.

    Raises:
        UsageError: The log has no iteration line, and no time was typed.
    """
    found = Asked(
        samples=log.number("global_batch_size") or next((step.samples for step in log.steps if step.samples), None),
        step_ns=_median([step.step_ns for step in _settled(log.steps) if step.step_ns]),
        gpus=log.number("world_size"),
        seq_len=log.number("seq_length"),
        checkpointing=_checkpointing(log),
        dtype=_dtype(log),
    )
    asked = _completed(asked, found, f"from {log.path}")
    rates = [step.tokens_per_s_per_gpu for step in _settled(log.steps) if step.tokens_per_s_per_gpu]
    if asked.step_ns is None and rates:
        return _from_rate(asked, _median(rates) or 1)
    if asked.step_ns is None:
        raise UsageError(f"{log.path} has no iteration line, so --time is missing")
    return asked


def _settled(steps: Sequence[LoggedStep]) -> Sequence[LoggedStep]:
    """The steps without the first, which pays for start-up; all of them where there is only one."""
    return steps[1:] or steps


def _median(values: Sequence[int]) -> int | None:
    if not values:
        return None
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) // 2


def _from_rate(asked: Asked, tokens_per_s_per_gpu: int) -> Asked:
    """A log that states tokens a second of one GPU: any batch and number of GPUs give the same TFLOPs."""
    samples, gpus, seq_len = asked.samples or 1, asked.gpus or 1, asked.seq_len or DEFAULT_SEQ_LEN
    step_ns = samples * seq_len * NS_PER_S // (tokens_per_s_per_gpu * gpus)
    read = f"{tokens_per_s_per_gpu} tokens a second of one GPU, the median of the log"
    return asked._replace(samples=samples, gpus=gpus, step_ns=step_ns, read=(*asked.read, read))


def _completed(asked: Asked, found: Asked, origin: str) -> Asked:
    said = {
        "samples": f"global batch {found.samples}",
        "step_ns": f"time of a step {(found.step_ns or 0) / NS_PER_S:.4g} s, the median without the first",
        "gpus": f"{found.gpus} GPUs",
        "seq_len": f"sequence length {found.seq_len}",
        "checkpointing": f"activation checkpointing {found.checkpointing}",
        "dtype": f"matrix products in {found.dtype}",
    }
    taken = {
        name: value for name in said if getattr(asked, name) is None and (value := getattr(found, name)) is not None
    }
    return asked._replace(**taken, read=(*asked.read, *(f"{said[name]}, {origin}" for name in taken)))


def _checkpointing(log: TrainingLog) -> Checkpointing | None:
    """What the arguments say; Megatron recomputes nothing unless it is told to."""
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


def with_deepspeed_config(asked: Asked, path: Path) -> Asked:
    """Take from a DeepSpeed config what was not typed.

    Raises:
        SourceError: The file cannot be read.
        UsageError: It is no DeepSpeed config, or its batch sizes contradict each other.
    """
    config = read_deepspeed_config(path)
    found = Asked(
        samples=config.global_batch(asked.gpus),
        step_ns=None,
        gpus=None,
        seq_len=None,
        checkpointing=None,
        dtype=Dtype(config.dtype) if config.dtype else None,
    )
    return _completed(asked, found, f"from {path}")


def allowed_by(log: TrainingLog, asked: Asked, seq_len: int, gpus: int) -> list[Allowed]:
    """The operations per token that each line of a log allows."""
    lines = []
    for step in log.steps:
        samples = step.samples or asked.samples
        if step.tflops is None:
            continue
        low, high = step.tflops - step.resolution / 2, step.tflops + step.resolution / 2
        if step.tokens_per_s_per_gpu:
            rate = step.tokens_per_s_per_gpu
            lines.append(Allowed(step.step, low * 1e12 / (rate + 0.5), high * 1e12 / (rate - 0.5)))
        elif step.step_ns and samples:
            scale = gpus * 1e12 / NS_PER_S / (samples * seq_len)
            half = step.step_resolution_ns / 2
            lines.append(Allowed(step.step, low * scale * (step.step_ns - half), high * scale * (step.step_ns + half)))
    return lines


def size_mistakes(log: TrainingLog, known: ModelDescription | None) -> tuple[str, ...]:
    """Say where a log states a size in G of 2**30 as if it were B of 10**9."""
    if known is None:
        return ()
    exact = total_parameters(known.transformer) / 1e9
    return tuple(
        f"the log says `Model size: {claimed:g}B`, counted in G of 2**30; in B of 10**9 it is "
        f"{format_parameters(round(exact * 1e9))}"
        for claimed in log.claimed_sizes
        if abs(claimed - exact / _GIBI) <= _WHOLE_BILLION < abs(claimed - exact)
    )


class LogAnswer(NamedTuple):
    """What a log's own figure turned out to be.

    Attributes:
        convention: The convention that explains it; absent for none.
        data: The value of ``log`` in JSON.
        notes: The same in sentences, and mistakes in what the log states.
    """

    convention: str | None
    data: Json
    notes: tuple[str, ...]


#: The conventions that a framework's log is likely to use, tried first.
_LIKELY = {
    "megatron": {"megatron_core", "megatron_before_2025", "bigscience_code"},
    "torchtitan": {"torchtitan"},
}


def hold_against(
    log: TrainingLog,
    asked: Asked,
    seq_len: int,
    gpus: int,
    known: ModelDescription | None,
    conventions: Sequence[Convention],
) -> LogAnswer:
    """Find the convention that the log's own TFLOPs follow."""
    candidates = [each for each in conventions if "+" not in each.name]
    likely_first = sorted(candidates, key=lambda each: each.name not in _LIKELY[log.framework])
    found = match_log(allowed_by(log, asked, seq_len, gpus), likely_first)
    mistakes = size_mistakes(log, known)
    data: Json = {
        "path": log.path,
        "framework": log.framework,
        "label": log.label or None,
        "steps": len(log.steps),
        "steps_with_tflops": found.lines if found else 0,
        "convention": found.convention if found else None,
        "nearest": found.nearest if found else None,
        "deviation_from_nearest": found.nearest_deviation if found else None,
        "notes": list(mistakes),
    }
    return LogAnswer(found.convention if found else None, data, (_sentence(log, found), *mistakes))


def _sentence(log: TrainingLog, found: LogMatch | None) -> str:
    if found is None:
        return f"{log.path} prints no TFLOPs to compare with."
    if found.convention:
        return (
            f"`{log.label}` is `{found.convention}`: it gives every one of the {found.lines} printed figures "
            "within their rounding."
        )
    return (
        f"`{log.label}` is none of these conventions; `{found.nearest}` is nearest, the log is "
        f"{found.nearest_deviation:+.1%} from it: are the dimensions, the batch or the number of GPUs others?"
    )
