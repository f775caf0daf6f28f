"""``perfscope tflops``: the figure that people compute from a log with a one-liner, and what it assumes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfscope.analyzers.flops.throughput import Throughput
from perfscope.commands.options import model as option
from perfscope.commands.options.common import FormatOption, require_positive
from perfscope.commands.options.model_choice import Choice, Typed, choose_model
from perfscope.commands.options.peaks import DtypeOption, GpuOption, PeakOption, resolve_peak
from perfscope.commands.tflops.inputs import DEFAULT_GPUS, DEFAULT_SEQ_LEN, Asked
from perfscope.commands.tflops.report import Answer, to_report
from perfscope.errors import UsageError
from perfscope.models.conventions import Checkpointing
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.units import parse_duration_ns


def tflops(
    size: option.SizeOption = None,
    model: option.ModelOption = None,
    gbs: Annotated[int | None, typer.Option(help="Global batch size: sequences in one step over all GPUs.")] = None,
    time: Annotated[str | None, typer.Option(help="Time of one step: 127, 127s, 2m7s, 127000ms.")] = None,
    gpus: Annotated[int | None, typer.Option(help=f"Number of GPUs.  [default: {DEFAULT_GPUS}]")] = None,
    seq_len: Annotated[
        int | None,
        typer.Option("--seq-len", "--seq-length", help=f"Tokens in a sequence.  [default: {DEFAULT_SEQ_LEN}]"),
    ] = None,
    checkpointing: Annotated[
        Checkpointing | None, typer.Option(help="Activations that are recomputed.  [default: full]")
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(help="A Megatron or torchtitan log: gives what is not typed, and its own TFLOPs are checked."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="A trace taken with --shapes: its operations are counted and held against the formula."),
    ] = None,
    deepspeed_config: Annotated[
        Path | None, typer.Option(help="A DeepSpeed config: gives the global batch size and the number format.")
    ] = None,
    gpu: GpuOption = None,
    dtype: DtypeOption = None,
    peak: PeakOption = None,
    layers: option.LayersOption = None,
    hidden: option.HiddenOption = None,
    heads: option.HeadsOption = None,
    kv_heads: option.KvHeadsOption = None,
    head_dim: option.HeadDimOption = None,
    ffn: option.FfnOption = None,
    vocab: option.VocabOption = None,
    padded_vocab: option.PaddedVocabOption = None,
    gated: option.GatedOption = None,
    tied: option.TiedOption = None,
    experts: option.ExpertsOption = None,
    top_k: option.TopKOption = None,
    expert_ffn: option.ExpertFfnOption = None,
    shared_ffn: option.SharedFfnOption = None,
    dense_layers: option.DenseLayersOption = None,
    mtp_layers: option.MtpLayersOption = None,
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Compute TFLOPs per GPU, MFU and HFU from a model, a global batch size and a step time, by every convention."""
    dimensions: Typed = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "ffn": ffn,
        "vocab": vocab,
        "padded_vocab": padded_vocab,
        "gated": gated,
        "tied": tied,
        "experts": experts,
        "top_k": top_k,
        "expert_ffn": expert_ffn,
        "shared_ffn": shared_ffn,
        "dense_layers": dense_layers,
        "mtp_layers": mtp_layers,
    }
    asked = Asked(gbs, parse_duration_ns(time) if time else None, gpus, seq_len, checkpointing, dtype)
    training_log = None
    if log:
        from perfscope.commands.tflops.log import with_log
        from perfscope.sources.joblog.megatron_log import read_megatron_log

        training_log = read_megatron_log(log)
        asked = with_log(asked, training_log)
    if deepspeed_config:
        from perfscope.commands.tflops.log import with_deepspeed_config

        asked = with_deepspeed_config(asked, deepspeed_config)
    traced = None
    if trace:
        from perfscope.commands.tflops.trace import read_traced_step, with_trace

        traced = read_traced_step(trace)
        asked = with_trace(asked, traced)
    choice = choose_model(
        size, model, dimensions, asked.seq_len or DEFAULT_SEQ_LEN, training_log.model if training_log else None
    )
    answer = Answer(
        result=_throughput(asked, choice),
        choice=choice,
        asked=asked,
        peak=resolve_peak(gpu, asked.dtype, peak),
        log=training_log,
        trace=traced,
    )
    report = to_report(answer)
    return Outcome(report, format, notes=tuple(f"warning: {line}" for line in report.warnings))


def _throughput(asked: Asked, choice: Choice) -> Throughput:
    for name, value in (("--gbs", asked.samples), ("--time", asked.step_ns)):
        if value is None:
            raise UsageError(f"{name} is missing", hint="perfscope tflops --size 52B --gbs 1024 --time 127")
    assert asked.samples is not None
    assert asked.step_ns is not None
    return Throughput(
        parameters=choice.parameters,
        samples=require_positive("--gbs", asked.samples),
        step_ns=asked.step_ns,
        gpus=require_positive("--gpus", DEFAULT_GPUS if asked.gpus is None else asked.gpus),
        seq_len=require_positive("--seq-len", DEFAULT_SEQ_LEN if asked.seq_len is None else asked.seq_len),
        checkpointing=asked.checkpointing or Checkpointing.FULL,
    )
