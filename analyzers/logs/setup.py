"""Model, batch and parallel layout of a run: what its log and its name state, what follows, what must be assumed."""

from __future__ import annotations

from math import prod
from typing import Annotated

import msgspec
import numpy as np

from perfscope.constants import GIGA
from perfscope.models.conventions import DEFAULT_GPUS, DEFAULT_SEQ_LEN, Checkpointing
from perfscope.result import Doc, Figures, figure
from perfscope.tables.joblog import JobLog

_NOT_IN_A_GPT = ("swiglu", "group_query_attention", "experts", "untie_embeddings_and_output_weights")


class Overrides(msgspec.Struct, frozen=True):
    """What the user states about the runs, ``samples`` in a global batch; it overrides what logs and names state."""

    parameters: int | None = None
    gpus: int | None = None
    seq_len: int | None = None
    samples: int | None = None
    checkpointing: Checkpointing | None = None
    warmup: int | None = None


class LoggedLayout(Figures, frozen=True):
    """The layout of a run: what is stated, and what follows from it by division without remainder."""

    nodes: Annotated[int | None, Doc("Hosts.")] = None
    tp: Annotated[int | None, Doc("Tensor parallelism.")] = None
    pp: Annotated[int | None, Doc("Pipeline parallelism.")] = None
    dp: Annotated[int | None, Doc("Data parallelism.")] = None
    cp: Annotated[int | None, Doc("Context parallelism.")] = None
    ep: Annotated[int | None, Doc("Expert parallelism.")] = None
    gas: Annotated[int | None, Doc("Micro-batches of a step.")] = None
    mbs: Annotated[int | None, Doc("Sequences of a micro-batch.")] = None
    zero_stage: Annotated[int | None, Doc("ZeRO stage.")] = None


class TrainingSetup(Figures, frozen=True):
    """Model, batch and layout of a run, each null where it is unknown, and what was assumed."""

    INLINE = ("layout",)

    layout: LoggedLayout
    parameters: Annotated[int | None, Doc("Size of the model.")]
    parameters_source: Annotated[str | None, Doc("Where the size comes from.")]
    gpus: Annotated[int | None, Doc("GPUs of the job.")]
    seq_len: Annotated[int | None, Doc("Tokens in a sequence.")]
    gbs: Annotated[int | None, Doc("Global batch, in sequences.")]
    checkpointing: Annotated[Checkpointing | None, Doc("Activation checkpointing: what is recomputed.")]
    assumed: Annotated[tuple[str, ...], Doc("What was assumed.")] = ()

    @figure
    def size(self) -> str | None:
        """The size of the model in billions, as text."""
        return None if self.parameters is None else f"{self.parameters / GIGA:.4g}B"

    @figure
    def global_batch_size(self) -> int | None:
        """The same as ``gbs``."""
        return self.gbs


def determine_setup(log: JobLog, overrides: Overrides) -> TrainingSetup:
    """Model, batch and layout as far as they are stated or follow; for a benchmark's log the rest is assumed."""
    stated = stated_setup(log, overrides)
    gpus, seq_len, checkpointing = stated.gpus, stated.seq_len, stated.checkpointing
    assumed: list[str] = []
    # A benchmark's file name has only size and batch; what BigScience's one-liner then assumes is listed.
    if stated.parameters_source == "name" and stated.gbs is not None:
        if gpus is None:
            gpus = DEFAULT_GPUS
            assumed.append(f"{gpus} GPUs (--gpus)")
        if seq_len is None:
            seq_len = DEFAULT_SEQ_LEN
            assumed.append(f"sequence length {seq_len} (--seq-len)")
        if checkpointing is None:
            checkpointing = Checkpointing.FULL
            assumed.append("activation checkpointing full (--checkpointing)")
    return msgspec.structs.replace(
        stated,
        gpus=gpus,
        seq_len=seq_len,
        checkpointing=checkpointing,
        layout=_layout(log, gpus, stated.gbs),
        assumed=tuple(assumed),
    )


def stated_setup(log: JobLog, overrides: Overrides) -> TrainingSetup:
    """Model, batch and layout as far as they are stated or follow, without assumptions."""
    parameters, source = _parameters(log, overrides)
    gpus, samples = overrides.gpus or _gpus(log), overrides.samples or _samples(log)
    fact = log.fact("checkpointing")
    stated = Checkpointing(fact.value) if fact is not None and fact.value in set(Checkpointing) else None
    seq_len = overrides.seq_len or log.number("seq_len")
    layout = _layout(log, gpus, samples)
    return TrainingSetup(layout, parameters, source, gpus, seq_len, samples, overrides.checkpointing or stated)


def _parameters(log: JobLog, overrides: Overrides) -> tuple[int | None, str | None]:
    if overrides.parameters is not None:
        return overrides.parameters, "given"
    stated = log.fact("parameters")
    if stated is not None and stated.source == "log" and log.fact("parameters_rounded") is None:
        return log.number("parameters"), "log"
    counted = count_gpt_parameters(log)
    if counted is not None:
        return counted, "arguments"
    if stated is not None and stated.source == "log":
        return log.number("parameters"), "log, rounded"
    if log.number("parameters_of_shards") is not None:
        return log.number("parameters_of_shards"), "log, sum of the shards"
    return log.number("parameters"), stated.source if stated else None


def count_gpt_parameters(log: JobLog) -> int | None:
    """Parameters of a GPT from its dimensions; None where they are unknown or the model is no plain GPT.

    Source: bigscience-workshop/bigscience, experiments/gpt2.md: ``l(12h^2 + 13h) + vh + sh + 2h``.
    """
    layers, hidden, seq_len = (log.number(name) for name in ("layers", "hidden", "seq_len"))
    unpadded = log.arguments.get("vocab_size", "")
    vocab = log.number("vocab") or (int(unpadded) if unpadded.isdecimal() else None)
    if layers is None or hidden is None or vocab is None or seq_len is None:
        return None
    if any(fact is not None and fact.value for fact in map(log.fact, _NOT_IN_A_GPT)):
        return None
    if log.number("ffn") not in (None, 4 * hidden):
        return None
    return layers * (12 * hidden**2 + 13 * hidden) + vocab * hidden + seq_len * hidden + 2 * hidden


def _gpus(log: JobLog) -> int | None:
    sizes = [log.number(name) for name in ("tp", "pp", "dp")]
    product = prod(size or 0 for size in sizes) * (log.number("cp") or 1)
    return log.number("gpus") or product or None


def _layout(log: JobLog, gpus: int | None, samples: int | None) -> LoggedLayout:
    sizes = {name: value for name in LoggedLayout.__struct_fields__ if (value := log.number(name)) is not None}
    tensor, pipeline, context = sizes.get("tp"), sizes.get("pp"), sizes.get("cp", 1)
    if "dp" not in sizes and gpus and tensor and pipeline:
        _divide(sizes, "dp", gpus, tensor * pipeline * context)
    micro, accumulated = sizes.get("mbs"), sizes.get("gas")
    if "dp" not in sizes and samples and micro and accumulated:
        _divide(sizes, "dp", samples, micro * accumulated)
    replicas = sizes.get("dp")
    if accumulated is None and samples and micro and replicas:
        _divide(sizes, "gas", samples, micro * replicas)
    if pipeline is None and gpus and tensor and replicas:
        _divide(sizes, "pp", gpus, tensor * replicas * context)
    return LoggedLayout(**sizes)


def _divide(sizes: dict[str, int], name: str, total: int, divisor: int) -> None:
    if total % divisor == 0 and total >= divisor:
        sizes[name] = total // divisor


def _samples(log: JobLog) -> int | None:
    """The global batch: what the records state, else what the set-up states, else the product of its parts."""
    stated = log.iterations.samples.compressed()
    if len(stated):
        values, counts = np.unique(stated, return_counts=True)
        return int(values[np.argmax(counts)])
    batch = log.number("gbs")
    if batch is not None:
        return batch
    micro, accumulated = log.number("mbs"), log.number("gas")
    gpus, parallel = _gpus(log), prod(log.number(name) or 1 for name in ("tp", "pp", "cp"))
    replicas = log.number("dp") or (gpus or 0) // parallel
    return None if micro is None or not replicas else micro * replicas * (accumulated or 1)
