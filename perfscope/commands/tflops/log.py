"""The log that measured the step of ``perfscope tflops``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from perfscope.analyzers.logs.setup import Overrides, determine_setup, stated_setup
from perfscope.analyzers.logs.step_times import measure_step_times, warmup_records
from perfscope.analyzers.tflops.comparison import Convention, LogMatch, Step, match_log
from perfscope.commands.model import (
    Dtype,
    ModelChoice,
    StepInputs,
    choose_logged_model,
)
from perfscope.constants import NS_PER_S, TERA
from perfscope.errors import UsageError
from perfscope.measures.statistics import median
from perfscope.models.own_figures import LoggedMfu, explain_convention, explain_mfu, find_faults
from perfscope.report import Json
from perfscope.sources.joblog import read_log
from perfscope.tables.joblog import JobLog

_MEGATRON_CONVENTIONS = {"megatron_core", "megatron_bridge_before_26_06", "megatron_before_2025", "bigscience_code"}
#: The conventions that a framework's log is likely to use, tried first.
_LIKELY = {
    "megatron-lm": _MEGATRON_CONVENTIONS,
    "megatron-deepspeed": _MEGATRON_CONVENTIONS,
    "gpt-neox": _MEGATRON_CONVENTIONS,
    "nanotron": {"megatron_before_2025"},
    "nemo": _MEGATRON_CONVENTIONS,
    "torchtitan": {
        "torchtitan",
        "torchtitan_before_april_2024",
        "torchtitan_since_may_2026",
        "torchtitan_since_september_2026",
    },
}


class StepLog(NamedTuple):
    """A log of the step, and the model that it describes, as far as it does."""

    log: JobLog
    choice: ModelChoice | None

    def supply(self, inputs: StepInputs, usual_seq_len: int) -> StepInputs:
        """Take missing values from the log; the same ones as ``perfscope logs`` reports.

        ``usual_seq_len`` is what a sequence has where neither states it.

        Raises UsageError where neither states the time of a step, or the number of GPUs.
        """
        log = self.log
        setup = stated_setup(log, Overrides())
        rate = _tokens_per_s_per_gpu(log)
        dtype, gpu = log.fact("matmul_dtype"), log.fact("gpu")
        if gpu and not (dtype or inputs.dtype or inputs.gpu):
            without_peak = f"GPU {gpu.value}, from {log.path}; without --dtype its peak is unknown"
            inputs, gpu = inputs._replace(read=(*inputs.read, without_peak)), None
        supplied = StepInputs(
            samples=setup.gbs,
            step_ns=_step_ns(log, rate),
            gpus=setup.gpus,
            seq_len=setup.seq_len,
            checkpointing=setup.checkpointing,
            dtype=Dtype(str(dtype.value)) if dtype else None,
            gpu=str(gpu.value) if gpu else None,
        )
        inputs = inputs.fill_missing(supplied, log.path)
        if inputs.step_ns is not None and inputs.gpus is None and determine_setup(log, Overrides()).gpus is None:
            raise UsageError("--gpus is missing", hint=f"{log.path} does not state the number of GPUs")
        if inputs.step_ns is not None:
            return inputs
        if rate is None:
            reason = f": {log.mixture}" if log.mixture else " has no iteration line"
            raise UsageError(f"{log.path}{reason}, so --time is missing")
        return _supply_from_rate(inputs, rate, usual_seq_len)

    def compare(
        self, step: Step, conventions: Sequence[Convention], gpu: str | None
    ) -> tuple[dict[str, Json], tuple[str, ...]]:
        """Find the convention that the log's own TFLOPs follow: for JSON, and in sentences."""
        log = self.log
        faults = find_faults(log.framework, step.model)
        conventions = (*conventions, *_make_faulty(conventions, faults))
        likely = _LIKELY.get(log.framework or "", set())
        likely_first = sorted(conventions, key=lambda convention: convention.name not in likely)
        log_match = match_log(_list_allowed(log, step), likely_first)
        data: dict[str, Json] = {
            "path": log.path,
            "framework": log.framework,
            "label": log.tflops_label,
            "steps": len(log.iterations),
            "steps_with_tflops": log_match.lines if log_match else 0,
            "convention": log_match.convention if log_match else None,
            "nearest": log_match.nearest if log_match else None,
            "deviation_from_nearest": log_match.nearest_deviation if log_match else None,
        }
        why = (
            *explain_convention(log_match.convention if log_match else None, step.model),
            *_explain_mfu(log, gpu, step.peak_tflops),
        )
        return {**data, "why": list(why)}, (_describe_match(log, log_match), *why)


def _make_faulty(
    conventions: Sequence[Convention], faults: Mapping[str, tuple[str | None, int]]
) -> Iterator[Convention]:
    for name, (convention, more) in faults.items():
        for each in conventions:
            if each.name == convention and each.flops_per_token is not None:
                yield msgspec.structs.replace(each, name=name, flops_per_token=each.flops_per_token + more)


def _explain_mfu(log: JobLog, gpu: str | None, peak_tflops: float | None) -> tuple[str, ...]:
    stated = log.fact("stated_mfu")
    if stated is None:
        return ()
    tflops = log.iterations.tflops_per_gpu[-1:].compressed()
    logged = LoggedMfu(float(stated.value), float(tflops[0]) if len(tflops) else None)
    return explain_mfu(log.framework, logged, gpu, peak_tflops)


def read_step_log(path: Path) -> StepLog:
    """Read a training log; UsageError where no known framework wrote it, or its arguments contradict each other."""
    log = read_log(path)
    if log.framework is None:
        raise UsageError(
            f"{path} is not a log of a known framework: it has neither printed arguments nor iteration lines",
            hint="docs/logs.md lists the frameworks",
        )
    return StepLog(log, choose_logged_model(log))


def _step_ns(log: JobLog, tokens_per_s_per_gpu: int | None) -> int | None:
    """The median of the steady-state steps; a time that follows from dates is less exact than a printed rate."""
    median_s = measure_step_times(log, warmup=None).median_s
    if median_s is None or (tokens_per_s_per_gpu is not None and not log.iterations.wall_resolution_ns.count()):
        return None
    return round(median_s * NS_PER_S)


def _tokens_per_s_per_gpu(log: JobLog) -> int | None:
    rates = log.iterations.tokens_per_s_per_gpu
    steady = rates[~warmup_records(log.iterations, None)].compressed()
    rate = median(steady if len(steady) else rates.compressed())
    return round(rate) if rate else None


def _supply_from_rate(inputs: StepInputs, tokens_per_s_per_gpu: int, usual_seq_len: int) -> StepInputs:
    """Work out the step of a log that states tokens/s per GPU: any batch and number of GPUs give the same TFLOPs."""
    samples, gpus, seq_len = inputs.samples or 1, inputs.gpus or 1, inputs.seq_len or usual_seq_len
    step_ns = samples * seq_len * NS_PER_S // (tokens_per_s_per_gpu * gpus)
    phrase = f"{tokens_per_s_per_gpu} tokens/s per GPU, the median of the log"
    return inputs._replace(samples=samples, gpus=gpus, step_ns=step_ns, read=(*inputs.read, phrase))


def _list_allowed(log: JobLog, step: Step) -> list[tuple[float, float]]:
    """The operations per token that each record of a log allows, by the rounding of what it prints."""
    rows = log.iterations
    columns = (
        rows.tflops_per_gpu,
        rows.tflops_resolution,
        rows.wall_ns,
        rows.wall_resolution_ns,
        rows.samples,
        rows.tokens_per_s_per_gpu,
    )
    allowed = []
    for tflops, resolution, wall_ns, wall_resolution_ns, samples, rate in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        if tflops is None or resolution is None:
            continue
        low, high = (tflops - resolution / 2) * TERA, (tflops + resolution / 2) * TERA
        if wall_ns is not None and wall_resolution_ns is not None:
            gpu_s_per_token = step.gpus / NS_PER_S / (samples * step.seq_len if samples else step.tokens)
            shortest_ns, longest_ns = wall_ns - wall_resolution_ns / 2, wall_ns + wall_resolution_ns / 2
            allowed.append((low * gpu_s_per_token * shortest_ns, high * gpu_s_per_token * longest_ns))
        elif rate:  # printed without decimals
            allowed.append((low / (rate + 0.5), high / (rate - 0.5)))
    return allowed


def _describe_match(log: JobLog, log_match: LogMatch | None) -> str:
    if log_match is None:
        return f"{log.path} prints no TFLOPs to compare with."
    if log_match.convention:
        return (
            f"`{log.tflops_label}` is `{log_match.convention}`: it gives every one of the {log_match.lines} printed "
            "figures within their rounding."
        )
    return (
        f"`{log.tflops_label}` is none of these conventions; `{log_match.nearest}` is nearest, the log is "
        f"{log_match.nearest_deviation:+.1%} from it: do the dimensions, the batch or the number of GPUs differ?"
    )
