"""Model, batch and layout of a run: what its log and its name say, what follows from that, what must be assumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np

from perfscope.models.conventions import Checkpointing
from perfscope.tables.joblog import JobLog

_ASSUMED_GPUS = 64
_ASSUMED_SEQ_LEN = 1024

#: What a run's layout is made of.
LAYOUT = ("nodes", "tp", "pp", "dp", "cp", "ep", "gas", "mbs", "zero_stage")


@dataclass(frozen=True, slots=True)
class Given:
    """What the user says about the runs; it goes before what logs and names say.

    Attributes:
        parameters, gpus, seq_len, samples: Size of the model, GPUs of the job, tokens in a sequence, global batch.
        checkpointing: Which activations are recomputed.
        warmup: Iterations of every start that are left out; absent for one record.
    """

    parameters: int | None = None
    gpus: int | None = None
    seq_len: int | None = None
    samples: int | None = None
    checkpointing: Checkpointing | None = None
    warmup: int | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """Model, batch and layout of a run, each absent where nothing tells it, and what was assumed.

    Attributes:
        parameters: Size of the model.
        parameters_source: What told it.
        gpus: GPUs of the job.
        seq_len: Tokens in a sequence.
        samples: Global batch.
        checkpointing: Which activations are recomputed.
        layout: ``tp``, ``gas`` and the like: what is stated, and what follows from it without a rest.
        assumed: What was taken for granted, in words.
    """

    parameters: int | None
    parameters_source: str | None
    gpus: int | None
    seq_len: int | None
    samples: int | None
    checkpointing: Checkpointing | None
    layout: Mapping[str, int] = field(default_factory=dict)
    assumed: tuple[str, ...] = field(default=())


def know(log: JobLog, given: Given) -> Work:
    """Gather model, batch and layout; what is given goes before what is found."""
    parameters, source = _parameters(log, given)
    gpus = given.gpus or _gpus(log)
    seq_len = given.seq_len or log.number("seq_len")
    samples = given.samples or _samples(log)
    checkpointing = given.checkpointing or _checkpointing(log)
    assumed: list[str] = []
    # A benchmark's name gives size and batch alone; what the seed's one-liner then takes for granted is said beside it.
    if source == "name" and samples is not None:
        if gpus is None:
            gpus = _ASSUMED_GPUS
            assumed.append(f"{gpus} GPUs (--gpus)")
        if seq_len is None:
            seq_len = _ASSUMED_SEQ_LEN
            assumed.append(f"sequence length {seq_len} (--seq-len)")
        if checkpointing is None:
            checkpointing = Checkpointing.FULL
            assumed.append("activation checkpointing full (--checkpointing)")
    layout = _layout(log, gpus, samples)
    return Work(parameters, source, gpus, seq_len, samples, checkpointing, layout, tuple(assumed))


def _parameters(log: JobLog, given: Given) -> tuple[int | None, str | None]:
    if given.parameters is not None:
        return given.parameters, "given"
    stated = log.fact("parameters")
    if stated is not None and stated.source == "log" and log.fact("parameters_rounded") is None:
        return log.number("parameters"), "log"
    counted_up = dense_parameters(log)
    if counted_up is not None:
        return counted_up, "arguments"
    if stated is not None and stated.source == "log":
        return log.number("parameters"), "log, rounded"
    if log.number("parameters_of_shards") is not None:
        return log.number("parameters_of_shards"), "log, sum of the shards"
    return log.number("parameters"), stated.source if stated else None


def dense_parameters(log: JobLog) -> int | None:
    """Parameters of a plain GPT from its dimensions; None where they are unknown or the model is another.

    Source: bigscience-workshop/bigscience, experiments/gpt2.md: ``l(12h^2 + 13h) + vh + sh + 2h``.
    """
    layers, hidden, vocab, seq_len = (log.number(name) for name in ("layers", "hidden", "vocab", "seq_len"))
    if layers is None or hidden is None or vocab is None or seq_len is None:
        return None
    if any(log.fact(name) is not None and log.fact(name).value for name in _NOT_PLAIN):  # type: ignore[union-attr]
        return None
    if log.number("ffn") not in (None, 4 * hidden):
        return None
    return layers * (12 * hidden**2 + 13 * hidden) + vocab * hidden + seq_len * hidden + 2 * hidden


_NOT_PLAIN = ("swiglu", "group_query_attention", "experts", "untie_embeddings_and_output_weights")


def _gpus(log: JobLog) -> int | None:
    stated = log.number("gpus")
    if stated is not None:
        return stated
    for parts in (("tp", "pp", "dp"), ("nodes", "gpus_per_node")):
        sizes = [log.number(name) for name in parts]
        known = [size for size in sizes if size]
        if len(known) == len(parts):
            return prod(known) * (log.number("cp") or 1 if "dp" in parts else 1)
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


def _divide(layout: dict[str, int], name: str, whole: int, part: int) -> None:
    if whole % part == 0 and whole >= part:
        layout[name] = whole // part


def _samples(log: JobLog) -> int | None:
    """The global batch: what the records state, else what the set-up states, else the product of its parts."""
    stated = log.iterations.samples.compressed()
    if len(stated):
        values, counts = np.unique(stated, return_counts=True)
        return int(values[np.argmax(counts)])
    whole = log.number("gbs")
    if whole is not None:
        return whole
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
    known = {str(kind) for kind in Checkpointing}
    return Checkpointing(fact.value) if fact is not None and fact.value in known else None
