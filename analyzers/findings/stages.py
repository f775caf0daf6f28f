"""Findings about pipelines: stages with unequal work, and too few micro-batches."""

from __future__ import annotations

from math import ceil

from perfscope.analyzers.findings.facts import Evidence
from perfscope.analyzers.findings.finding import Account, Basis, Cause, Rule, Rules
from perfscope.analyzers.findings.in_use import offer
from perfscope.analyzers.findings.options import DEEPSPEED, MEGATRON, TORCH, option
from perfscope.analyzers.findings.training import Training
from perfscope.constants import MEGA, US_PER_MS
from perfscope.report import percent
from perfscope.schedules.catalog import Schedule

#: Stages whose times differ by less are equal.
_LEAST_DIFFERENCE = 0.05
_ROUNDING = 1e-9
#: Schedules of which others have a smaller bubble with the same micro-batches; one that was not recognised is none.
_PLAIN = (Schedule.GPIPE, Schedule.ONE_F_ONE_B)
#: Less is a norm, or a flag.
_LEAST_SHARED_BYTES = MEGA


def find_uneven_stages(training: Training) -> Cause | None:
    """The slowest stage sets the pace of all."""
    facts, source = training.facts, training.pipeline
    rows = facts.rows(f"{source}/stages") if source else []
    useful = {row: facts.amount(f"{row}/useful_us") for row in rows}
    imbalance = facts.amount(f"{source}/imbalance_fraction_of_total")
    if len(useful) < 2 or not imbalance:  # noqa: PLR2004 - one stage is no pipeline
        return None
    slowest, fastest = max(rows, key=lambda row: useful[row]), min(rows, key=lambda row: useful[row])
    mean_us = sum(useful.values()) / len(useful)
    if useful[slowest] < (1 + _LEAST_DIFFERENCE) * mean_us or _has_equal_devices(training):
        return None
    cost_us = imbalance * facts.amount(f"{source}/section_us")
    moved = (useful[slowest] - mean_us) / useful[slowest]
    stages = [int(facts.amount(f"{row}/stage")) for row in (slowest, fastest)]
    evidence = Evidence(
        f"Stage {stages[0]} works {useful[slowest] / US_PER_MS:.2f} ms of a step, stage {stages[1]} "
        f"{useful[fastest] / US_PER_MS:.2f} ms.",
        (f"{slowest}/useful_us", f"{fastest}/useful_us", f"{source}/imbalance_fraction_of_total"),
    )
    advice = f"Move {percent(moved):.0f} % of the layers of stage {stages[0]} to stage {stages[1]}: " + option(
        training,
        {
            MEGATRON: "`--pipeline-model-parallel-layout`, or `--decoder-first-pipeline-num-layers` and "
            "`--decoder-last-pipeline-num-layers`.",
            DEEPSPEED: "`PipelineModule(partition_method=...)`: `parameters`, or `type:` with other bounds.",
            TORCH: "the layers that each `PipelineStage` gets.",
        },
    )
    ranks = facts.value(f"{slowest}/ranks")
    of_stage = tuple(ranks) if isinstance(ranks, (list, tuple)) else (facts.rank(slowest),)
    return Cause(cost_us, (cost_us, cost_us), tuple(int(str(rank)) for rank in of_stage), (evidence,), advice)


def _has_equal_devices(training: Training) -> bool:
    """Whether traces say that the devices of all stages work equally long: passes are longer by their hosts then."""
    facts, source = training.facts, training.traced_pipeline
    useful = [facts.amount(f"{row}/useful_us") for row in facts.rows(f"{source}/stages")] if source else []
    return bool(useful) and max(useful) < (1 + _LEAST_DIFFERENCE) * sum(useful) / len(useful)


def find_large_bubble(training: Training) -> Cause | None:
    """The schedule leaves stages idle at both ends of a step: more micro-batches make that a smaller part."""
    facts, source = training.facts, training.pipeline
    bubble = facts.amount(f"{source}/schedule_fraction_of_total") if source else 0.0
    microbatches, stages = (int(facts.amount(f"{source}/{name}")) for name in ("microbatches", "p"))
    if not bubble or not microbatches or not stages:
        return None
    # The bubble b of m micro-batches is c / (m + c): (p - 1) / (m + p - 1) for 1F1B. It halves where m + c doubles.
    theory = facts.number(f"{source}/theory_fraction_of_total") or (stages - 1) / (microbatches + stages - 1)
    doubled = ceil(microbatches * (2 - theory) / (1 - theory) - _ROUNDING)
    cost_us = bubble / 2 * facts.amount(f"{source}/section_us")
    evidence = Evidence(
        f"{percent(bubble):.1f} % of the stages' time is the schedule's bubble: {stages} stages, {microbatches} "
        "micro-batches.",
        (f"{source}/schedule_fraction_of_total", f"{source}/microbatches", f"{source}/p"),
    )
    schedule = facts.text(f"{source}/schedule")
    is_plain, is_interleaved = schedule in _PLAIN, schedule == Schedule.INTERLEAVED
    advice = f"{doubled} micro-batches halve it: " + option(
        training,
        {
            MEGATRON: offer(
                ("a smaller `--micro-batch-size`", False),
                ("`--num-layers-per-virtual-pipeline-stage` (interleaving)", not is_plain),
                ("fewer `--num-layers-per-virtual-pipeline-stage`", not is_interleaved),
            )
            + ".",
            DEEPSPEED: "`gradient_accumulation_steps`, with a smaller `train_micro_batch_size_per_gpu`.",
            TORCH: offer(
                ("`n_microbatches` of the schedule", False),
                ("`ScheduleInterleaved1F1B`", not is_plain),
                ("`ScheduleInterleavedZeroBubble`", not is_interleaved),
            )
            + ".",
        },
    )
    return Cause(cost_us, (cost_us, 2 * cost_us), (), (evidence,), advice, basis=Basis.BOUND)


def find_tied_embeddings(training: Training) -> Cause | None:
    """The first and the last stage add up the gradient of weights that they share, and all stages wait for it."""
    facts = training.facts
    rows = [
        row
        for row in facts.rows("/collectives/operations")
        if training.pipeline
        and (facts.text(f"{row}/operation"), facts.text(f"{row}/axis")) == ("all_reduce", "PP")
        and facts.amount(f"{row}/bytes") >= _LEAST_SHARED_BYTES
    ]
    if not rows:
        return None
    row = max(rows, key=lambda row: facts.amount(f"{row}/transfer_us"))
    times = facts.amount(f"{row}/calls") / training.window_steps
    transfer_us = times * facts.amount(f"{row}/transfer_us")
    cost_us = (1 - facts.amount(f"{row}/overlap_fraction")) * transfer_us
    evidence = Evidence(
        f"The stages at both ends add up {facts.amount(f'{row}/bytes') / MEGA:.1f} MB of gradients in a step, which "
        f"takes {transfer_us / US_PER_MS:.2f} ms.",
        (f"{row}/bytes", f"{row}/transfer_us", f"{row}/calls", f"{row}/overlap_fraction"),
    )
    advice = "Give the output layer weights of its own, or a faster network between these stages: " + option(
        training,
        {
            MEGATRON: "`--untie-embeddings-and-output-weights`.",
            DEEPSPEED: "`LayerSpec` in place of `TiedLayerSpec`.",
            TORCH: "a parameter of its own in the last stage.",
        },
    )
    return Cause(cost_us, (cost_us, cost_us), (), (evidence,), advice)


RULES: Rules = (
    Rule("uneven_stages", "Uneven pipeline stages", (Account.PIPELINE,), find_uneven_stages),
    Rule("large_bubble", "Pipeline bubble", (Account.PIPELINE,), find_large_bubble),
    Rule("tied_embeddings", "Gradients of tied embeddings", (Account.COMMUNICATION,), find_tied_embeddings),
)
