"""Rules about ranks that wait for each other: reductions, exposed communication, late ranks, stages of a pipeline."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from math import ceil

from perfscope.analyzers.findings.finding import NEARLY_ALL, Basis, Fault, Finder, Proof, fact
from perfscope.analyzers.findings.training import (
    Stages,
    StepPart,
    TracedRun,
    numbered,
)
from perfscope.analyzers.stragglers.lateness import BY_CHANCE, LateCause
from perfscope.analyzers.stragglers.traces import Why
from perfscope.constants import MEGA, NS_PER_US, US_PER_MS, US_PER_S
from perfscope.report import percent
from perfscope.schedules.catalog import Schedule
from perfscope.units import format_seconds

_GLOO = "gloo:all_reduce"
_REDUCES = ("all_reduce", "reduce_scatter", "all_gather")
_SMALL_BYTES = MEGA
_MOST_SMALL = 16
#: Axes whose communication is no transfer between stages.
_BESIDE_STAGES = ("DP", "TP", "CP", "EP")

#: What makes a rank as fast as the others.
_SCENARIOS = {Why.HOST: "median-host={}", Why.DEVICE: "median-device={}", Why.WORK: "median-device={}"}
#: Why a rank is late that no other finding names. What other processes take is no fault of the training.
WHY_LATE = {
    LateCause.FAULTS: Why.HOST,
    LateCause.KERNEL: Why.HOST,
    LateCause.BLOCKED: Why.HOST,
    LateCause.COMPUTE: Why.HOST,
    LateCause.WORK: Why.WORK,
}
#: How a sentence goes on where only a replay tells why a rank is last.
_BY_REPLAY = {Why.HOST: ", whose host is late by the replay", Why.DEVICE: ", whose device is slower by the replay"}
#: What is wrong, by the rank.
_SLOW = {
    Why.HOST: "Rank {} is slow",
    Why.DEVICE: "The GPU of rank {} is slow",
    Why.WORK: "Rank {} has more work",
    Why.UNKNOWN: "Rank {} comes last",
}
#: What the others wait is explained where the rank did that much of it longer.
_EXPLAINED = 0.3
#: Schedules of which others have a smaller bubble with the same micro-batches; one that was not recognised is none.
_PLAIN = (Schedule.GPIPE, Schedule.ONE_F_ONE_B)


def _host_reductions(training: TracedRun) -> tuple[float, tuple[str, ...]]:
    host = training.results.host
    rows = [
        (row, operator)
        for row, operator in numbered("/host/operators", host.operators if host is not None else ())
        if operator.name == _GLOO
    ]
    steps = sum(rank.steps for rank in training.ranks) or 1
    return sum(operator.calls for _, operator in rows) / steps, tuple(f"/results{row}/calls" for row, _ in rows)


def find_repeated_reductions(training: TracedRun) -> Fault | None:
    """DDP reduces its gradients after every micro-batch, although only the last one's sum is needed."""
    steps, rank = training.results.steps, training.most_exposed
    ddp = training.setup.ddp if training.setup is not None else None
    micro_batches = round((steps.micro_batches or 0) if steps is not None else 0)
    if rank is None or ddp is None or not ddp.gradient_bytes or micro_batches <= 1:
        return None
    reductions = [(row, each) for row, each in training.operations if each.operation == "all_reduce"]
    if reductions:
        reduced = sum((each.bytes or 0) * each.calls for _, each in reductions)
        times = reduced / ddp.gradient_bytes / training.window_steps
        pointers = tuple(f"/results{row}/calls" for row, _ in reductions[:3])
    else:
        calls, pointers = _host_reductions(training)
        times = calls / max(round(ddp.gradient_bytes / (ddp.bucket_bytes or ddp.gradient_bytes)), 1)
    if times < NEARLY_ALL * micro_batches:
        return None
    saved = (micro_batches - 1) / micro_batches
    cost_us = saved * rank.communication
    evidence = Proof(
        f"DistributedDataParallel reduces all {ddp.gradient_bytes / MEGA:.1f} MB of gradients {times:.1f} times a "
        f"step, which has {micro_batches} micro-batches.",
        ("/results/setup/ranks/0/ddp/gradient_bytes", "/results/steps/micro_batches", *pointers),
    )
    advice = training.advise("no_sync")
    return Fault(
        cost_us, (cost_us, cost_us), (), (evidence,), advice,
        scenario="communication-free", scenario_part=saved, is_counted=True,
    )  # fmt: skip


def find_small_collectives(training: TracedRun) -> Fault | None:
    """Many small reductions in place of few large ones: each pays its latency."""
    rank, setup, steps = training.most_exposed, training.setup, training.results.steps
    if rank is None:
        return None
    if training.has_device:
        times = {row: each.duration - (each.wait or 0) for row, each in training.operations}
        small = [
            (row, each)
            for row, each in training.operations
            if each.operation in _REDUCES and 0 < (each.bytes or 0) < _SMALL_BYTES
        ]
        calls = sum(each.calls for _, each in small) / training.window_steps
        share = sum(times[row] for row, _ in small) / (sum(times.values()) or 1)
        pointers = tuple(f"/results{row}/calls" for row, _ in small[:3])
    else:  # whose reductions state no sizes: by the size of all gradients
        calls, pointers = _host_reductions(training)
        size = ((setup.ddp.gradient_bytes if setup.ddp else 0) or setup.gradient_bytes or 0) if setup is not None else 0
        micro_batches = max((steps.micro_batches or 1.0) if steps is not None else 1.0, 1.0)
        share = 1.0 if 0 < size * micro_batches / max(calls, 1.0) < _SMALL_BYTES else 0.0
    if calls < _MOST_SMALL or not share:
        return None
    text = f"A step makes {calls:.0f} reductions of less than {_SMALL_BYTES / MEGA:.0f} MB each."
    evidence = [Proof(text, pointers)]
    bucket = setup.ddp.bucket_bytes if setup is not None and setup.ddp is not None else None
    if bucket is not None:
        text = f"DDP's buckets hold {bucket / MEGA:.2f} MB at most."
        evidence.append(fact(text, "/setup/ranks/0/ddp", "bucket_bytes"))
    advice = training.advise("small_collectives")
    cost_us = share * rank.communication
    return Fault(cost_us, (cost_us / 2, cost_us), (), tuple(evidence), advice, Basis.BOUND)


def find_exposed_communication(training: TracedRun) -> Fault | None:
    """Communication that nothing hides, on GPUs; on processors it takes the cores that would compute meanwhile."""
    rank, overlap = training.most_exposed, training.results.overlap
    if rank is None or overlap is None or not training.has_device:
        return None
    axes = [  # stages wait for each other: in a pipeline only the other axes count, whose sum is over all ranks
        (row, axis, axis.row)
        for row, axis in numbered("/overlap/axes", overlap.axes)
        if training.pipeline is None or axis.axis in _BESIDE_STAGES
    ]
    exposed_us = sum(times.exposed_us for *_, times in axes)
    if not exposed_us:
        return None
    row, axis, _ = max(axes, key=lambda entry: entry[2].exposed)
    cost_us = rank.communication
    if training.pipeline is not None:
        cost_us = min(exposed_us / max(len(training.ranks), 1) / rank.steps, cost_us)
    hidden = percent(axis.marked.overlap_fraction) if axis.marked is not None else None
    sentence = "" if hidden is None else f" {hidden:.0f} % of it is hidden on average."
    name = axis.axis or "all ranks"
    evidence = [
        Proof(
            f"Communication, mostly of the axis {name}, is exposed for {cost_us / US_PER_MS:.2f} ms of a step."
            f"{sentence}",
            (f"/results{row}/exposed_us", f"/results{rank.pointer}/exposed_communication_us"),
        )
    ]
    engine = training.setup.engine if training.setup is not None else {}
    in_deepspeed = "" if engine.get("zero_optimization.overlap_comm") is True else '`"overlap_comm": true` and '
    about = f"exposed_communication{'_of_tp' if name == 'TP' else ''}"
    advice = f"Try {training.advise(about, overlap=in_deepspeed)}"
    if cost_us > rank.compute:
        text = f"A step computes {rank.compute / US_PER_MS:.2f} ms, which cannot hide all of it."
        evidence.append(fact(text, rank.pointer, "compute_us"))
        advice += " Transfer less: add micro-batches up before a reduction, or reduce gradients in bf16."
    return Fault(
        cost_us, (0.0, cost_us), (rank.rank,), tuple(evidence), advice, Basis.BOUND,
        scenario="perfect-overlap", is_counted=True,
    )  # fmt: skip


def find_straggler(training: TracedRun, why: Why) -> Fault | None:
    """The rank that the others wait for, where this is why."""
    if training.pipeline is not None:
        return None  # stages wait for each other by the order of their passes
    straggler = _find_straggler(training)
    return straggler[1] if straggler is not None and straggler[0] is why else None


def _find_straggler(training: TracedRun) -> tuple[Why, Fault] | None:
    waits = training.results.stragglers
    if waits is None and not training.has_device:
        return _find_late_host(training)
    if waits is None or waits.straggler is None:
        return None
    straggler = waits.straggler
    row, rank = next(entry for entry in numbered("/stragglers/ranks", waits.ranks) if entry[1].rank == straggler)
    cost_us = (rank.caused_wait_us - rank.wait_us) / max(len(waits.compared.steps) if waits.compared else 0, 1)
    blamed = (each for group in waits.groups for each in group.ranks if each.rank == straggler and each.excess)
    own = next(blamed, None)
    why, detail = (own.why, f": {own.reason}" if own.reason else "") if own is not None else (Why.UNKNOWN, "")
    if why is Why.LAUNCHES:
        return None  # where hosts launch too slowly, one of them is always the last
    if why is Why.UNKNOWN:
        why = _by_replay(training, straggler, cost_us)
        detail = _BY_REPLAY.get(why, detail)
    evidence = fact(
        f"The others wait {cost_us / US_PER_MS:.2f} ms of a step for rank {straggler}{detail}.", row, "caused_wait_us"
    )
    late = training.results.late_ranks.late if training.results.late_ranks is not None else ()
    line = next((entry.line for entry in late if entry.rank == straggler), None)
    return why, Fault(
        cost_us, (0.0, cost_us), (straggler,), (evidence,), training.advise(f"straggler_{why}"),
        scenario=_SCENARIOS.get(why, "").format(straggler),
        title=_title(why, straggler, cost_us), place=line if why is Why.HOST else None,
    )  # fmt: skip


def _title(why: Why, rank: int, cost_us: float) -> str:
    slow = _SLOW.get(why, _SLOW[Why.UNKNOWN]).format(rank)
    return f"{slow}, the others wait {format_seconds(cost_us / US_PER_S)} a step for it"


def _find_late_host(training: TracedRun) -> tuple[Why, Fault] | None:
    """The rank that makes the others wait without a GPU, by the record of every step."""
    results = training.results.late_ranks
    entries = numbered("/late_ranks/late", results.late if results is not None else ())
    known = [entry for entry in entries if entry[1].cause in WHY_LATE]
    row, worst = known[0] if known else ("", None)
    if results is None or worst is None or worst.rank is None:
        return None
    why, rank = WHY_LATE[worst.cause], worst.rank
    cost_ns = sum(late.cost_ns for _, late in known if late.rank == rank and WHY_LATE[late.cause] is why)
    if not worst.persistent and cost_ns < BY_CHANCE * results.compared_ns:
        return None
    cost_us = cost_ns / results.compared_steps / NS_PER_US
    loop = training.results.loop
    pauses = loop.pauses if loop is not None and loop.rank == rank and not worst.persistent else None
    detail = f". {pauses.in_words}" if pauses is not None else ""
    evidence = fact(
        f"The others wait {cost_us / US_PER_MS:.2f} ms of a step for rank {rank}: {worst.cause.label}{detail}.",
        row,
        "cost_ns",
    )
    return why, Fault(
        cost_us, (0.0, cost_us), (rank,), (evidence,), training.advise(f"straggler_{why}"), is_of_all_steps=True,
        title=_title(why, rank, cost_us), place=worst.line,
    )  # fmt: skip


def _by_replay(training: TracedRun, straggler: int, cost_us: float) -> Why:
    answers = ((why, training.regain(_SCENARIOS[why].format(straggler))) for why in (Why.HOST, Why.DEVICE))
    saved_us = {why: answer.saved_ns / NS_PER_US for why, answer in answers if answer is not None}
    best = max(saved_us, key=lambda why: saved_us[why], default=Why.UNKNOWN)
    return best if saved_us and saved_us[best] >= _EXPLAINED * cost_us else Why.UNKNOWN


def find_uneven_stages(training: TracedRun) -> Fault | None:
    """The slowest stage sets the pace of all."""
    pipeline = training.pipeline
    if pipeline is None or len(pipeline.stages) <= 1 or not pipeline.imbalance_share:
        return None
    # Where the devices of all stages work equally long, passes are longer by their hosts.
    is_even_on_devices = training.traced_pipeline is not None and _excess(training.traced_pipeline) < BY_CHANCE
    if _excess(pipeline) < BY_CHANCE or is_even_on_devices:
        return None
    cost_us = pipeline.imbalance_share * pipeline.section_us
    useful_us = [us for _, us in pipeline.stages]
    slowest, fastest = useful_us.index(max(useful_us)), useful_us.index(min(useful_us))
    moved = 1 - sum(useful_us) / len(useful_us) / useful_us[slowest]
    evidence = Proof(
        f"Stage {slowest} works {useful_us[slowest] / US_PER_MS:.2f} ms of a step, stage {fastest} "
        f"{useful_us[fastest] / US_PER_MS:.2f} ms.",
        (
            *(f"/results{pipeline.pointer}/stages/{stage}/useful_us" for stage in (slowest, fastest)),
            f"/results{pipeline.pointer}/imbalance_fraction_of_total",
        ),
    )
    advice = f"Move {percent(moved):.0f} % of the layers of stage {slowest} to stage {fastest}: "
    advice += training.advise("uneven_stages")
    return Fault(cost_us, (cost_us, cost_us), pipeline.stages[slowest][0], (evidence,), advice)


def _excess(pipeline: Stages) -> float:
    useful_us = [us for _, us in pipeline.stages]
    return max(useful_us) * len(useful_us) / sum(useful_us) - 1 if sum(useful_us) else 0.0


def find_large_bubble(training: TracedRun) -> Fault | None:
    """The schedule leaves stages idle at both ends of a step: more micro-batches make that a smaller part."""
    pipeline = training.pipeline
    if pipeline is None or not pipeline.schedule_share or not pipeline.microbatches:
        return None
    stages, microbatches = len(pipeline.stages), pipeline.microbatches
    # The bubble b of m micro-batches is c / (m + c): (p - 1) / (m + p - 1) for 1F1B. It halves where m + c doubles.
    theory = Fraction(pipeline.theory or (stages - 1) / (microbatches + stages - 1)).limit_denominator()
    doubled = ceil(microbatches * (2 - theory) / (1 - theory))
    cost_us = pipeline.schedule_share / 2 * pipeline.section_us
    evidence = fact(
        f"{percent(pipeline.schedule_share):.1f} % of the stages' time is the schedule's bubble: {stages} stages, "
        f"{microbatches} micro-batches.",
        pipeline.pointer,
        "schedule_fraction_of_total microbatches p",
    )
    is_plain, is_interleaved = pipeline.schedule in _PLAIN, pipeline.schedule == Schedule.INTERLEAVED
    in_use = "" if is_plain else "not plain", "" if is_interleaved else "not interleaved"
    advice = f"{doubled} micro-batches halve it: {training.advise('large_bubble', *in_use)}."
    return Fault(cost_us, (cost_us, 2 * cost_us), (), (evidence,), advice, basis=Basis.BOUND)


_WAITS = StepPart.COMMUNICATION, StepPart.HOST
RULES = (
    Finder("straggler_host", "A slow rank", _WAITS, partial(find_straggler, why=Why.HOST)),
    Finder("straggler_device", "A rank with a slow GPU", _WAITS[:1], partial(find_straggler, why=Why.DEVICE)),
    Finder("straggler_work", "A rank with more work", _WAITS[:1], partial(find_straggler, why=Why.WORK)),
    Finder("straggler_network", "A rank that comes last", _WAITS[:1], partial(find_straggler, why=Why.UNKNOWN)),
    Finder("uneven_stages", "Uneven pipeline stages", (StepPart.PIPELINE,), find_uneven_stages),
    Finder("large_bubble", "Pipeline bubble", (StepPart.PIPELINE,), find_large_bubble),
    Finder("no_sync", "Gradients reduced in every micro-batch", (StepPart.COMMUNICATION,), find_repeated_reductions),
    Finder("small_collectives", "Small collectives", (StepPart.COMMUNICATION,), find_small_collectives),
    Finder("exposed_communication", "Exposed communication", _WAITS, find_exposed_communication, is_rest=True),
)
