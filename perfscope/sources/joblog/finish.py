"""From everything that was read of a log to its table: which figures are the step time, who wrote it, what it lacks."""

from __future__ import annotations

from math import ceil, prod
from pathlib import Path

from perfscope.constants import GIB, NS_PER_S
from perfscope.sources.joblog import (
    composer,
    deepspeed,
    gluon_nlp,
    hf_trainer,
    megatron,
    nemo,
    oneflow,
    timers,
    torchtitan,
    torchtune,
)
from perfscope.sources.joblog.draft import (
    Draft,
)
from perfscope.sources.joblog.names import read_name
from perfscope.sources.joblog.series import Record, Series
from perfscope.tables.joblog import JobLog, Other

#: Sources of the step time, the most trustworthy first, and the frameworks that print them.
_SOURCES = {
    megatron.SOURCE: "megatron",
    deepspeed.PIPELINE: "deepspeed",
    nemo.SOURCE: "nemo",
    gluon_nlp.SOURCE: "gluon-nlp",
    composer.SOURCE: "composer",
    oneflow.LATENCY: "oneflow",
    oneflow.STAMPS: "oneflow",
    torchtitan.SOURCE: "torchtitan",
    torchtune.SOURCE: "torchtune",
    hf_trainer.RUN: "hf-trainer",
    hf_trainer.BAR: "hf-trainer",
    deepspeed.THROUGHPUT: "deepspeed",
    timers.SOURCE: "deepspeed",
    deepspeed.STEPS: "deepspeed",
}
#: Where micro-steps may have been counted, DeepSpeed's throughput is the last resort.
_DOUBTFUL = deepspeed.THROUGHPUT
_ALIKE = 0.25
_EVIDENCE = ("torchtitan", "gluon-nlp", "nemo", "composer", "oneflow", "hf-trainer")


def finish(draft: Draft, path: Path) -> JobLog:
    """Make the table of one log."""
    name = read_name(path)
    for fact, value in name.facts.items():
        draft.note(fact, value, "name")
    total_of_records = draft.scratch.get("train iterations")
    if isinstance(total_of_records, int):
        draft.note("train_iterations", total_of_records, "records")
    if draft.scratch.get("without deepspeed"):
        draft.forget("zero_stage")  # an argument that nothing heeds
    _note_shards(draft)
    _note_trainer(draft)
    _note_total_memory(draft)
    source = _best(draft)
    series = draft.series[source] if source is not None else Series()
    interval = _interval(draft, source, series)
    total = draft.number("train_iterations")
    return JobLog(
        path=str(path),
        framework=_framework(draft, source),
        iterations=series.iterations(interval),
        folded=series.folded(interval),
        time_source=source,
        copies=series.copies,
        redone=series.redone,
        gaps=series.irregular,
        unreadable=draft.unreadable,
        others=_others(draft, source),
        facts=draft.facts(),
        saves=tuple(draft.saves),
        timers=draft.timers(),
        memory=draft.memory,
        out_of_memory=draft.out_of_memory,
        names_run=name.is_run,
        ended=draft.ended,
        complete=None if series.last is None or total is None else series.last >= total,
        remarks=tuple(f"{code}: {text}" for code, text in draft.remarks.items()),
    )


def _note_shards(draft: Draft) -> None:
    """The sum over tensor and pipeline ranks, where every one of them printed its share."""
    shards = draft.shards
    if shards:
        sizes = [max(place) + 1 for place in zip(*shards, strict=False)]
        if prod(sizes) == len(shards):
            draft.note("parameters_of_shards", sum(shards.values()), "log")


def _note_trainer(draft: Draft) -> None:
    """Hugging Face's run time as one record: a mean over all steps; its data parallel is all that it knows."""
    if draft.evidence["hf-trainer"]:
        _note_replicas(draft)
    runtime, examples_per_s = draft.scratch.get("hf runtime_s"), draft.scratch.get("hf samples_per_s")
    if not isinstance(runtime, float):
        return
    speed = examples_per_s if isinstance(examples_per_s, float) else None
    steps = draft.number("train_iterations") or _steps_of_bar(draft) or _steps_of_batch(draft, runtime, speed)
    if steps is None:
        draft.remark("steps-unknown", "train_runtime is known, the number of steps is not: no step time")
        return
    loss = draft.scratch.get("last loss")
    first = draft.scratch.get("first loss")
    if isinstance(first, float):
        draft.note("first_loss", first, "records")
    record = Record(steps, round(runtime / steps * NS_PER_S), samples_per_s=speed)
    record.loss = loss if isinstance(loss, float) else None
    draft.of(hf_trainer.RUN).add(record)


def _note_replicas(draft: Draft) -> None:
    batch, micro, accumulated = (draft.number(name) for name in ("gbs", "mbs", "gas"))
    if batch and micro and accumulated and batch % (micro * accumulated) == 0:
        replicas = batch // (micro * accumulated)
        draft.note("dp", replicas, "records")
        if not draft.has("tp") and not draft.has("pp"):
            draft.note("gpus", replicas, "records")


def _steps_of_bar(draft: Draft) -> int | None:
    length = draft.scratch.get("bar length")
    return length if isinstance(length, int) and draft.of(hf_trainer.BAR).last == length else None


def _steps_of_batch(draft: Draft, runtime: float, speed: float | None) -> int | None:
    """Steps of the global batch size that the examples fill, if the rounded steps a second do not contradict it."""
    batch, rounded = draft.number("gbs"), draft.scratch.get("hf steps_per_s")
    if batch is None or speed is None:
        return None
    steps = ceil(round(speed * runtime) / batch)
    if isinstance(rounded, float) and abs(steps / runtime - rounded) > 0.0005 * 1.01:
        return None
    draft.note("train_iterations", steps, "records")
    return steps


def _note_total_memory(draft: Draft) -> None:
    total = draft.facts().get("memory_total_gib")
    if total and isinstance(total[0].value, float):
        draft.see_memory(total=total[0].value * GIB)


def _batch(draft: Draft) -> int | None:
    """Global batch; of micro-batches without a word on accumulation, one."""
    whole, micro = draft.number("gbs"), draft.number("mbs")
    if whole is not None or micro is None:
        return whole
    gpus, tensor, pipeline = draft.number("gpus"), draft.number("tp") or 1, draft.number("pp") or 1
    replicas = draft.number("dp") or (gpus // (tensor * pipeline) if gpus else None)
    return micro * replicas * (draft.number("gas") or 1) if replicas else None


def _best(draft: Draft) -> str | None:
    batch = _batch(draft)
    if batch is not None and deepspeed.THROUGHPUT in draft.series:
        draft.series[deepspeed.THROUGHPUT].time_by(batch)
    timed = [source for source in _SOURCES if source in draft.series and draft.series[source].median_ns() is not None]
    if "hf-trainer" not in draft.evidence:
        timed = [source for source in timed if source != hf_trainer.BAR]
    if _DOUBTFUL in timed and draft.number("gas") != 1 and timed != [_DOUBTFUL] and not _confirmed(draft, timed):
        timed = [*(source for source in timed if source != _DOUBTFUL), _DOUBTFUL]
    if timed:
        return timed[0]
    return next((source for source in _SOURCES if source in draft.series and len(draft.series[source])), None)


def _confirmed(draft: Draft, timed: list[str]) -> bool:
    """Whether another source gives about the same time: what is doubted is a factor of the accumulation steps."""
    doubtful = draft.series[_DOUBTFUL].median_ns() or 0
    others = [draft.series[source].median_ns() or 0 for source in timed if source != _DOUBTFUL]
    return any(abs(other - doubtful) <= _ALIKE * doubtful for other in others)


def _interval(draft: Draft, source: str | None, series: Series) -> int:
    if source == hf_trainer.RUN:
        return series.last or 1
    stated = draft.number("log_interval") if source == megatron.SOURCE else None
    if stated is None or series.has_intervals:
        return min(stated or series.interval(), series.interval())
    return stated


def _others(draft: Draft, chosen: str | None) -> tuple[Other, ...]:
    found = [
        Other(source, draft.series[source].median_ns(), draft.series[source].median_samples_per_s())
        for source in _SOURCES
        if source in draft.series and source != chosen
    ]
    return tuple(other for other in found if (other.wall_ns, other.samples_per_s) != (None, None))


def _framework(draft: Draft, source: str | None) -> str | None:
    evidence = draft.evidence
    wrote = _SOURCES.get(source or "")
    if wrote is None or wrote == "deepspeed":
        wrote = next((name for name in _EVIDENCE if evidence[name]), wrote)
    if wrote is None or wrote == "deepspeed":
        wrote = "megatron" if evidence["megatron"] or evidence["arguments"] else wrote
    if wrote == "megatron":
        return "gpt-neox" if evidence["gpt-neox"] else "megatron-deepspeed" if evidence["deepspeed"] else "megatron-lm"
    return wrote or ("deepspeed" if evidence["deepspeed"] else None)
