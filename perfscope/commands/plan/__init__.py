"""``perfscope plan``: how long a training takes, what fits on the GPUs, and how large a checkpoint is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfscope.analyzers.planning.memory import Attention, Loss, Optimizer
from perfscope.commands.options import model as option
from perfscope.commands.options.common import FormatOption, require_positive
from perfscope.commands.options.model_choice import Typed, choose_model
from perfscope.commands.options.peaks import DtypeOption, GpuOption, PeakOption, resolve_peak
from perfscope.commands.plan.inputs import (
    DEFAULT_SEQ_LEN,
    ConventionName,
    Question,
    States,
    check_batches,
    with_deepspeed_config,
)
from perfscope.commands.plan.report import to_report
from perfscope.errors import UsageError
from perfscope.models.conventions import Checkpointing
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.units import parse_tokens

_TIME = "Time"
_MEMORY = "Memory"


def plan(
    size: option.SizeOption = None,
    model: option.ModelOption = None,
    gpus: Annotated[int | None, typer.Option(help="Number of GPUs.")] = None,
    tokens: Annotated[str | None, typer.Option(help="Tokens to train on: 260B, 3.5T.", rich_help_panel=_TIME)] = None,
    tflops: Annotated[
        float | None, typer.Option(help="TFLOPs per GPU that the run reaches.", rich_help_panel=_TIME)
    ] = None,
    days: Annotated[
        float | None, typer.Option(help="Days it takes; in place of --tflops.", rich_help_panel=_TIME)
    ] = None,
    hours: Annotated[float | None, typer.Option(help="Hours it takes; added to --days.", rich_help_panel=_TIME)] = None,
    convention: Annotated[
        ConventionName, typer.Option(help="The convention that the TFLOPs are of.", rich_help_panel=_TIME)
    ] = ConventionName.BIGSCIENCE,
    checkpointing: Annotated[
        Checkpointing | None, typer.Option(help="Activations that are recomputed.  [default: full]")
    ] = None,
    seq_len: Annotated[
        int | None,
        typer.Option("--seq-len", "--seq-length", help=f"Tokens in a sequence.  [default: {DEFAULT_SEQ_LEN}]"),
    ] = None,
    gpu: GpuOption = None,
    dtype: DtypeOption = None,
    peak: PeakOption = None,
    zero: Annotated[int | None, typer.Option(help="Stage of ZeRO, 0 to 3.", rich_help_panel=_MEMORY)] = None,
    tp: Annotated[int | None, typer.Option(help="Tensor parallel degree.", rich_help_panel=_MEMORY)] = None,
    pp: Annotated[int | None, typer.Option(help="Pipeline parallel degree.", rich_help_panel=_MEMORY)] = None,
    ep: Annotated[int | None, typer.Option(help="Expert parallel degree.", rich_help_panel=_MEMORY)] = None,
    cp: Annotated[int | None, typer.Option(help="Context parallel degree.", rich_help_panel=_MEMORY)] = None,
    virtual_stages: Annotated[
        int | None, typer.Option(help="Virtual stages of each pipeline rank (interleaved).", rich_help_panel=_MEMORY)
    ] = None,
    micro_batch: Annotated[
        int | None,
        typer.Option(
            "--micro-batch", "--mbs", help="Sequences of one forward pass.  [default: 1]", rich_help_panel=_MEMORY
        ),
    ] = None,
    gbs: Annotated[int | None, typer.Option(help="Global batch size.", rich_help_panel=_MEMORY)] = None,
    sequence_parallel: Annotated[
        bool, typer.Option("--sequence-parallel", help="Split along the sequence too.", rich_help_panel=_MEMORY)
    ] = False,
    attention: Annotated[
        Attention, typer.Option(help="Whether the attention matrix is kept.", rich_help_panel=_MEMORY)
    ] = Attention.FLASH,
    optimizer: Annotated[Optimizer, typer.Option(help="The optimizer.", rich_help_panel=_MEMORY)] = Optimizer.ADAM,
    fp32_gradients: Annotated[
        bool, typer.Option("--fp32-gradients", help="Gradients are kept in fp32.", rich_help_panel=_MEMORY)
    ] = False,
    states: Annotated[
        States | None,
        typer.Option(
            help="What weights and optimizer are kept in.  [default: by --dtype, mixed or fp32]",
            rich_help_panel=_MEMORY,
        ),
    ] = None,
    loss: Annotated[
        Loss, typer.Option(help="What of the logits is there at once.", rich_help_panel=_MEMORY)
    ] = Loss.PLAIN,
    run: Annotated[
        Path | None,
        typer.Option(help="A run of perfscope profile: gives what is not typed, and is held against the estimates."),
    ] = None,
    deepspeed_config: Annotated[
        Path | None,
        typer.Option(help="A DeepSpeed config: gives ZeRO stage, batches and number format.", rich_help_panel=_MEMORY),
    ] = None,
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
    """Plan a training: days by the TFLOPs, or TFLOPs by the days; memory per GPU, what fits, and the checkpoint."""
    typed: Typed = {
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
    planned = None
    if run:
        from perfscope.commands.plan.run import read_planned_run

        planned, of_run = read_planned_run(run)
        gpus = of_run.gpus if gpus is None else gpus
        gpu = gpu or (planned.device if peak is None else None)
    if gpus is None:
        raise UsageError("--gpus is missing", hint="perfscope plan --model 13B --tokens 260B --gpus 16 --tflops 45")
    question = Question(
        gpus=require_positive("--gpus", gpus),
        tokens=parse_tokens(tokens) if tokens else None,
        tflops_per_gpu=_positive("--tflops", tflops),
        seconds=_seconds(days, hours),
        convention=convention,
        checkpointing=checkpointing,
        seq_len=_count("--seq-len", seq_len),
        zero=zero,
        tensor=_count("--tp", tp),
        pipeline=_count("--pp", pp),
        expert=_count("--ep", ep),
        context=_count("--cp", cp),
        virtual=_count("--virtual-stages", virtual_stages),
        micro_batch=_count("--micro-batch", micro_batch),
        global_batch=_count("--gbs", gbs),
        sequence_parallel=sequence_parallel,
        attention=attention,
        optimizer=optimizer,
        gradient_bytes=4 if fp32_gradients else None,
        dtype=dtype,
        loss=loss,
        states=states,
    )
    if deepspeed_config:
        question = with_deepspeed_config(question, deepspeed_config)
    check_batches(question)
    if planned and run:
        from perfscope.commands.plan.run import asked_of_run

        question = asked_of_run(question, of_run, run)
    if planned and size is None and model is None and not any(value is not None for value in typed.values()):
        choice = planned.choice()
    else:
        choice = choose_model(size, model, typed, question.seq_len or DEFAULT_SEQ_LEN)
    report = to_report(question, choice, resolve_peak(gpu, question.dtype, peak), planned)
    return Outcome(report, format, notes=tuple(f"warning: {line}" for line in report.warnings))


def _count(name: str, value: int | None) -> int | None:
    return None if value is None else require_positive(name, value)


def _positive(name: str, value: float | None) -> float | None:
    if value is not None and not 0 < value < float("inf"):
        raise UsageError(f"{name} must be positive, not {value:g}")
    return value


def _seconds(days: float | None, hours: float | None) -> float | None:
    if days is None and hours is None:
        return None
    return (_positive("--days", days) or 0.0) * 86400 + (_positive("--hours", hours) or 0.0) * 3600
