"""Model, batch and parallel layout of a run: what its log and its name state, what follows, what must be assumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from perfscope.models.conventions import Checkpointing
from perfscope.tables.joblog import JobLog

_ASSUMED_GPUS = 64
_ASSUMED_SEQ_LEN = 1024
_NOT_IN_A_GPT = ("swiglu", "group_query_attention", "experts", "untie_embeddings_and_output_weights")

#: The parts of a run's layout, by name.
LAYOUT = ("nodes", "tp", "pp", "dp", "cp", "ep", "gas", "mbs", "zero_stage")


@dataclass(frozen=True, slots=True)
class Overrides:
    """What the user states about the runs; it overrides what logs and names state.

    Attributes:
        parameters, gpus, seq_len, samples: Size of the model, GPUs of the job, tokens in a sequence, global batch.
        checkpointing: Activation checkpointing: what is recomputed.
        warmup: Iterations left out at every start; absent for one record.
    """

    parameters: int | None = None
    gpus: int | None = None
    seq_len: int | None = None
    samples: int | None = None
    checkpointing: Checkpointing | None = None
    warmup: int | None = None


@dataclass(frozen=True, slots=True)
class TrainingSetup:
    """Model, batch and layout of a run, each absent where it is unknown, and what was assumed.

    Attributes:
        parameters: Size of the model.
        parameters_source: Where that comes from.
        gpus: GPUs of the job.
        seq_len: Tokens in a sequence.
        samples: Global batch.
        checkpointing: Activation checkpointing: what is recomputed.
        layout: ``tp``, ``gas`` and the like: what is stated, and what follows from it by division without remainder.
        assumed: What was assumed, in words.
    """

    parameters: int | None
    parameters_source: str | None
    gpus: int | None
    seq_len: int | None
    samples: int | None
    checkpointing: Checkpointing | None
    layout: Mapping[str, int] = field(default_factory=dict)
    assumed: tuple[str, ...] = field(default=())


def determine_setup(log: JobLog, overrides: Overrides) -> TrainingSetup:
    """Model, batch and layout as far as they are stated or follow; for a benchmark's log the rest is assumed."""
    stated = stated_setup(log, overrides)
    gpus, seq_len, checkpointing = stated.gpus, stated.seq_len, stated.checkpointing
    assumed: list[str] = []
    # A benchmark's file name has only size and batch; what BigScience's one-liner then assumes is listed.
    if stated.parameters_source == "name" and stated.samples is not None:
        if gpus is None:
            gpus = _ASSUMED_GPUS
            assumed.append(f"{gpus} GPUs (--gpus)")
        if seq_len is None:
            seq_len = _ASSUMED_SEQ_LEN
            assumed.append(f"sequence length {seq_len} (--seq-len)")
        if checkpointing is None:
            checkpointing = Checkpointing.FULL
            assumed.append("activation checkpointing full (--checkpointing)")
    return replace(
        stated,
        gpus=gpus,
        seq_len=seq_len,
        checkpointing=checkpointing,
        layout=_layout(log, gpus, stated.samples),
        assumed=tuple(assumed),
    )


def stated_setup(log: JobLog, overrides: Overrides) -> TrainingSetup:
    """Model, batch and layout as far as they are stated or follow, without assumptions."""
    parameters, source = _parameters(log, overrides)
    gpus = overrides.gpus or _gpus(log)
    samples = overrides.samples or _samples(log)
    return TrainingSetup(
        parameters=parameters,
        parameters_source=source,
        gpus=gpus,
        seq_len=overrides.seq_len or log.number("seq_len"),
        samples=samples,
        checkpointing=overrides.checkpointing or _checkpointing(log),
        layout=_layout(log, gpus, samples),
    )


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
    vocab = log.number("vocab") or _vocabulary_without_padding(log)
    if layers is None or hidden is None or vocab is None or seq_len is None:
        return None
    if any(fact is not None and fact.value for fact in map(log.fact, _NOT_IN_A_GPT)):
        return None
    if log.number("ffn") not in (None, 4 * hidden):
        return None
    return layers * (12 * hidden**2 + 13 * hidden) + vocab * hidden + seq_len * hidden + 2 * hidden


def _vocabulary_without_padding(log: JobLog) -> int | None:
    """The tokens of a vocabulary whose padded size the log does not print."""
    text = log.arguments.get("vocab_size", "")
    return int(text) if text.isdecimal() else None


def _gpus(log: JobLog) -> int | None:
    stated = log.number("gpus")
    if stated is not None:
        return stated
    for parts in (("tp", "pp", "dp"), ("nodes", "gpus_per_node")):
        sizes = [log.number(name) for name in parts]
        stated_sizes = [size for size in sizes if size]
        if len(stated_sizes) == len(parts):
            return prod(stated_sizes) * (log.number("cp") or 1 if "dp" in parts else 1)
    return None


def _layout(log: JobLog, gpus: int | None, samples: int | None) -> dict[str, int]:
    layout = {name: value for name in LAYOUT for value in (log.number(name),) if value is not None}
    tensor, pipeline = layout.get("tp"), layout.get("pp")
    if "dp" not in layout and gpus and tensor and pipeline:
        _divide(layout, "dp", gpus, tensor * pipeline * layout.get("cp", 1))
    micro, accumulated = layout.get("mbs"), layout.get("gas")
    if "dp" not in layout and samples and micro and accumulated:
        _divide(layout, "dp", samples, micro * accumulated)
    replicas = layout.get("dp")
    if accumulated is None and samples and micro and replicas:
        _divide(layout, "gas", samples, micro * replicas)
    if pipeline is None and gpus and tensor and replicas:
        _divide(layout, "pp", gpus, tensor * replicas * layout.get("cp", 1))
    return layout


def _divide(layout: dict[str, int], name: str, total: int, divisor: int) -> None:
    if total % divisor == 0 and total >= divisor:
        layout[name] = total // divisor


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
    replicas = log.number("dp") or _replicas(log)
    if micro is None or replicas is None:
        return None
    return micro * replicas * (accumulated or 1)


def _replicas(log: JobLog) -> int | None:
    gpus = _gpus(log)
    if gpus is None:
        return None
    return gpus // ((log.number("tp") or 1) * (log.number("pp") or 1) * (log.number("cp") or 1)) or None


def _checkpointing(log: JobLog) -> Checkpointing | None:
    fact = log.fact("checkpointing")
    return Checkpointing(fact.value) if fact is not None and fact.value in set(Checkpointing) else None
