"""``perfscope tflops``: the figure that people compute from a log with a one-liner, and what it assumes."""

from __future__ import annotations

from typing import Annotated

import typer

from perfscope.analyzers.flops import Checkpointing, Throughput
from perfscope.commands.options import FormatOption, require_positive
from perfscope.hardware import fastest_gpu, find_gpu
from perfscope.outcome import Outcome
from perfscope.renderers import Format, render
from perfscope.report import Json, Report, Section
from perfscope.units import format_parameters, format_seconds, parse_duration_ns, parse_parameters

DEFAULT_GPUS = 64
DEFAULT_SEQ_LEN = 1024


def tflops(
    size: Annotated[str, typer.Option(help="Parameters of the model: 52B, 7.5B, 125M. B is 10**9.")],
    gbs: Annotated[int, typer.Option(help="Global batch size: sequences in one step over all GPUs.")],
    time: Annotated[str, typer.Option(help="Time of one step: 127, 127s, 2m7s, 127000ms.")],
    gpus: Annotated[int | None, typer.Option(help=f"Number of GPUs.  [default: {DEFAULT_GPUS}]")] = None,
    seq_len: Annotated[int | None, typer.Option(help=f"Tokens in a sequence.  [default: {DEFAULT_SEQ_LEN}]")] = None,
    checkpointing: Annotated[
        Checkpointing | None, typer.Option(help="Activations that are recomputed.  [default: full]")
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="The GPU, to check the result against its peak.")] = None,
    format: FormatOption = Format.MARKDOWN,  # noqa: A002 - the option's name
) -> Outcome:
    """Compute TFLOPs per GPU from a model size, a global batch size and a step time."""
    result = Throughput(
        parameters=parse_parameters(size),
        samples=require_positive("--gbs", gbs),
        step_ns=parse_duration_ns(time),
        gpus=require_positive("--gpus", DEFAULT_GPUS if gpus is None else gpus),
        seq_len=require_positive("--seq-len", DEFAULT_SEQ_LEN if seq_len is None else seq_len),
        checkpointing=checkpointing or Checkpointing.FULL,
    )
    peak_of = find_gpu(gpu) if gpu else fastest_gpu()
    peak = peak_of.dense_16bit_tflops
    warnings = _warn_above(peak, peak_of.name, result.tflops_per_gpu)
    assumed = _assumed(result, {"--gpus": gpus, "--seq-len": seq_len, "--checkpointing": checkpointing})
    data: dict[str, Json] = {"schema": "perfscope/tflops/1", **result.data(), "assumed": list(assumed)}
    title = (
        f"{result.tflops_per_gpu:.1f} TFLOPs per GPU: {format_parameters(result.parameters)}, "
        f"batch {result.samples}, {format_seconds(result.step_ns / 1e9)} a step"
    )
    sections = (result.section(), *_assumptions(assumed))
    return Outcome(
        render(Report(title, data, sections, warnings), format), notes=tuple(f"warning: {line}" for line in warnings)
    )


def _warn_above(peak: float, name: str, value: float) -> tuple[str, ...]:
    if value <= peak:
        return ()
    return (
        f"{value:.1f} TFLOPs per GPU is above the dense 16-bit peak of {name} ({peak:g}): "
        "there is a bug in the calculation, or an input is wrong",
    )


def _assumed(result: Throughput, given: dict[str, object]) -> tuple[str, ...]:
    values = {
        "--gpus": f"{result.gpus} GPUs",
        "--seq-len": f"sequence length {result.seq_len}",
        "--checkpointing": f"activation checkpointing {result.checkpointing}",
    }
    return tuple(f"{values[option]} ({option})" for option, value in given.items() if value is None)


def _assumptions(assumed: tuple[str, ...]) -> tuple[Section, ...]:
    if not assumed:
        return ()
    return (Section("Assumed, because not given", notes=assumed),)
