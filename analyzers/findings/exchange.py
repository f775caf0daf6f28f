"""Findings about communication: too often, too small, not hidden."""

from __future__ import annotations

import re

from perfscope.analyzers.findings.facts import Evidence
from perfscope.analyzers.findings.finding import Account, Basis, Cause, Confidence, Rule, Rules
from perfscope.analyzers.findings.in_use import has_option, offer, reduces_halves
from perfscope.analyzers.findings.options import DDP, DEEPSPEED, FSDP, LIGHTNING, MEGATRON, TORCH, TRAINER, option
from perfscope.analyzers.findings.training import RankStep, Training
from perfscope.constants import MEGA, MIB, US_PER_MS
from perfscope.report import percent

#: What DDP does on the host where the option is on: its search, and the node that copies what the model returns.
_SEARCH = re.compile(r"^torch\.distributed\.ddp\.reducer::search_unused_parameters$|^_DDPSink(?:Backward)?$")
_GLOO = "gloo:all_reduce"
_ON_DEVICE = "Device -> Device"
#: What ZeRO calls the options of its overlap, and the value with which nothing overlaps.
_OPTIONS_OF_ZERO = (("overlap_comm", "overlap_comm", False), ("prefetch_bucket_size", "stage3_prefetch_bucket_size", 0))
#: What DDP's buckets hold where nobody says another size.
_DEFAULT_BUCKET_BYTES = 25 * MIB
_REDUCES = ("all_reduce", "reduce_scatter", "all_gather")
_SMALL_BYTES = MEGA
_MOST_SMALL = 16
#: Of a reduction that is made more often than needed, counted by its bytes or its calls.
_NEARLY_ALL = 0.75
#: What larger messages save of the time of small ones.
_SAVED = 0.8
#: Axes whose communication is no transfer between stages.
_BESIDE_STAGES = ("DP", "TP", "CP", "EP")


def _most_exposed(training: Training) -> RankStep | None:
    return max(training.ranks, key=lambda rank: rank.communication, default=None)


def _steps_of_ranks(training: Training) -> float:
    """Steps in the traces, those of all ranks added up."""
    return sum(rank.steps for rank in training.ranks) or 1.0


def find_repeated_reductions(training: Training) -> Cause | None:
    """DDP reduces its gradients behind every micro-batch, although only the last one's sum is needed."""
    facts, rank = training.facts, _most_exposed(training)
    micro_batches = round(facts.amount("/steps/micro_batches"))
    gradient_bytes = facts.amount("/setup/ranks/0/ddp/gradient_bytes")
    if rank is None or micro_batches < 2 or not gradient_bytes:  # noqa: PLR2004 - one micro-batch needs its reduction
        return None
    rows = [row for row in facts.rows("/collectives/operations") if facts.text(f"{row}/operation") == "all_reduce"]
    if rows:
        reduced = sum(facts.amount(f"{row}/bytes") * facts.amount(f"{row}/calls") for row in rows)
        times = reduced / gradient_bytes / training.window_steps
        pointers = tuple(f"{row}/calls" for row in rows[:3])
    else:
        rows = [row for row in facts.rows("/host/operators") if facts.text(f"{row}/name") == _GLOO]
        times = sum(facts.amount(f"{row}/calls") for row in rows) / _steps_of_ranks(training)
        buckets = max(round(gradient_bytes / (facts.number("/setup/ranks/0/ddp/bucket_bytes") or gradient_bytes)), 1)
        times /= buckets
        pointers = tuple(f"{row}/calls" for row in rows)
    if times < _NEARLY_ALL * micro_batches:
        return None
    saved = (micro_batches - 1) / micro_batches
    cost_us = saved * rank.communication
    evidence = Evidence(
        f"DistributedDataParallel reduces all {gradient_bytes / MEGA:.1f} MB of gradients {times:.1f} times a step, "
        f"which has {micro_batches} micro-batches.",
        ("/setup/ranks/0/ddp/gradient_bytes", "/steps/micro_batches", *pointers),
    )
    advice = "Accumulate without reducing: " + option(
        training,
        {
            TRAINER: "`gradient_accumulation_steps` of TrainingArguments in place of a loop.",
            LIGHTNING: "`accumulate_grad_batches` of the Trainer.",
            TORCH: "`with model.no_sync():` around all micro-batches but the last (Accelerate: "
            "`accelerator.accumulate`).",
        },
    )
    return Cause(
        cost_us, (cost_us, cost_us), (), (evidence,), advice,
        scenario="communication-free", scenario_part=saved, is_counted=True,
    )  # fmt: skip


def find_small_collectives(training: Training) -> Cause | None:
    """Many small reductions in place of few large ones: each pays its latency."""
    facts, rank = training.facts, _most_exposed(training)
    if rank is None:
        return None
    if training.has_device:
        share, calls, pointers = _small_on_device(training)
    else:
        share, calls, pointers = _small_on_host(training)
    if calls < _MOST_SMALL or not share:
        return None
    cost_us = _SAVED * share * rank.communication
    bucket = facts.number("/setup/ranks/0/ddp/bucket_bytes")
    evidence = [
        Evidence(f"A step makes {calls:.0f} reductions of less than {_SMALL_BYTES / MEGA:.0f} MB each.", pointers)
    ]
    if bucket is not None:
        evidence.append(
            Evidence(f"DDP's buckets hold {bucket / MEGA:.2f} MB at most.", ("/setup/ranks/0/ddp/bucket_bytes",))
        )
    advice = "Reduce many gradients at once: " + option(
        training,
        {
            TRAINER: "a larger `ddp_bucket_cap_mb` of TrainingArguments.",
            DEEPSPEED: "a larger `reduce_bucket_size` and `allgather_bucket_size` in `zero_optimization`.",
            MEGATRON: "a larger `--ddp-bucket-size`.",
            DDP: "`DistributedDataParallel(bucket_cap_mb=25)`, its default, or more."
            if bucket is None or bucket < _DEFAULT_BUCKET_BYTES
            else "a larger `bucket_cap_mb` of DistributedDataParallel.",
            FSDP: "`fully_shard` on whole blocks, and not on each layer.",
            TORCH: "DistributedDataParallel, or one flat tensor for all gradients.",
        },
    )
    return Cause(cost_us, (cost_us / 2, cost_us), (), tuple(evidence), advice, Confidence.MEDIUM, Basis.BOUND)


def _small_on_device(training: Training) -> tuple[float, float, tuple[str, ...]]:
    """The share of communication in small reductions, their number in a step, and where they are."""
    facts = training.facts
    rows = facts.rows("/collectives/operations")
    times = {row: facts.amount(f"{row}/duration_us") - facts.amount(f"{row}/wait_us") for row in rows}
    small = [
        row
        for row in rows
        if facts.text(f"{row}/operation") in _REDUCES and 0 < facts.amount(f"{row}/bytes") < _SMALL_BYTES
    ]
    calls = sum(facts.amount(f"{row}/calls") for row in small) / training.window_steps
    whole = sum(times.values())
    return (
        (sum(times[row] for row in small) / whole if whole else 0.0),
        calls,
        tuple(f"{row}/calls" for row in small[:3]),
    )


def _small_on_host(training: Training) -> tuple[float, float, tuple[str, ...]]:
    """The same by the operators of a processor, whose reductions state no sizes: against the size of all gradients."""
    facts = training.facts
    rows = [row for row in facts.rows("/host/operators") if facts.text(f"{row}/name") == _GLOO]
    calls = sum(facts.amount(f"{row}/calls") for row in rows) / _steps_of_ranks(training)
    gradient_bytes = facts.number("/setup/ranks/0/ddp/gradient_bytes") or facts.amount("/setup/ranks/0/gradient_bytes")
    micro_batches = max(facts.amount("/steps/micro_batches"), 1.0)
    is_small = bool(gradient_bytes) and gradient_bytes * micro_batches / max(calls, 1.0) < _SMALL_BYTES
    return (1.0 if is_small else 0.0), calls, tuple(f"{row}/calls" for row in rows)


def find_unused_parameter_search(training: Training) -> Cause | None:
    """DDP looks for parameters without gradients behind each forward pass, and reduces the map of those in use.

    It also copies all that the model returns, so that their backward pass begins at a place of its own.
    """
    facts, rank = training.facts, _most_exposed(training)
    if rank is None or not facts.is_true("/setup/ranks/0/ddp/find_unused_parameters"):
        return None
    tensors = facts.amount("/setup/ranks/0/ddp/tensors")
    rows = [
        row
        for row in facts.rows("/collectives/operations")
        if facts.text(f"{row}/dtype") == "Int" and facts.amount(f"{row}/bytes") == 4 * tensors
    ]
    times = sum(facts.amount(f"{row}/duration_us") for row in facts.rows("/collectives/operations"))
    share = sum(facts.amount(f"{row}/duration_us") for row in rows) / times if times else 0.0
    searches = [row for row in facts.rows("/host/operators") if _SEARCH.search(facts.text(f"{row}/name"))]
    search_us = sum(facts.amount(f"{row}/total_us") for row in searches) / _steps_of_ranks(training)
    copy, copy_us = _longest_copy(training)
    cost_us = max(share * rank.communication + copy_us, search_us)
    evidence = [
        Evidence(
            f"`find_unused_parameters` is on for {tensors:.0f} parameters.",
            ("/setup/ranks/0/ddp/find_unused_parameters", *(f"{row}/calls" for row in rows[:1])),
        )
    ]
    if searches:
        text = f"The search, and the copies of what the model returns, take {search_us / US_PER_MS:.2f} ms of a step."
        evidence.append(Evidence(text, tuple(f"{row}/total_us" for row in searches)))
    if copy_us:
        text = f"DDP copies what the model returns: the longest copy on the device takes {copy_us / US_PER_MS:.2f} ms."
        evidence.append(Evidence(text, (f"{copy}/max_us",)))
    advice = "Where every parameter gets a gradient, try " + option(
        training,
        {
            TRAINER: "`ddp_find_unused_parameters=False` of TrainingArguments.",
            LIGHTNING: '`strategy="ddp"` in place of `"ddp_find_unused_parameters_true"`.',
            TORCH: offer(
                ("`DistributedDataParallel(find_unused_parameters=False)`", False),
                ("`static_graph=True`", facts.is_true("/setup/ranks/0/ddp/static_graph")),
            )
            + ".",
        },
    )
    is_seen = search_us > share * rank.communication + copy_us
    confidence, low_us = (Confidence.MEDIUM, cost_us / 2) if is_seen else (Confidence.LOW, 0.0)
    return Cause(cost_us, (low_us, cost_us), (), tuple(evidence), advice, confidence, Basis.BOUND)


def _longest_copy(training: Training) -> tuple[str, float]:
    """Where the longest copy on the device is, and its exposed part; traces do not name what it copies."""
    facts = training.facts
    rows = {row: facts.amount(f"{row}/max_us") for row in facts.rows("/kernels/names") if _is_copy(training, row)}
    row = max(rows, key=lambda row: rows[row], default="")
    return row, min(rows.get(row, 0.0), training.exposed_copies_us(_ON_DEVICE))


def _is_copy(training: Training, row: str) -> bool:
    return training.facts.text(f"{row}/work") == "copy" and _ON_DEVICE in training.facts.text(f"{row}/name")


def find_exposed_communication(training: Training) -> Cause | None:
    """Communication that nothing hides, on GPUs; on processors it takes the cores that would compute meanwhile."""
    rank = _most_exposed(training)
    if rank is None or not training.has_device:
        return None
    facts = training.facts
    axes = {
        row: facts.amount(f"{row}/marked/exposed_us") or facts.amount(f"{row}/exposed_us")
        for row in facts.rows("/overlap/axes")
        if not training.pipeline or facts.text(f"{row}/axis") in _BESIDE_STAGES
    }
    row = max(axes, key=lambda row: axes[row], default="")
    if not sum(axes.values()):
        return None
    # Stages wait for each other: in a pipeline only the other axes count, whose sum is over all ranks.
    ranks = max(len(training.ranks), 1)
    cost_us = (
        min(sum(axes.values()) / ranks / rank.steps, rank.communication) if training.pipeline else rank.communication
    )
    axis = facts.text(f"{row}/axis") or "all ranks"
    hidden = facts.number(f"{row}/marked/overlap_fraction")
    sentence = "" if hidden is None else f" {percent(hidden):.0f} % of it is hidden on average."
    evidence = Evidence(
        f"Communication, mostly of the axis {axis}, is exposed for {cost_us / US_PER_MS:.2f} ms of a step.{sentence}",
        (f"{row}/marked/exposed_us", f"{rank.pointer}/exposed_communication_us"),
    )
    settings = _settings_against_overlap(training)
    advice = _overlap_advice(training, axis)
    if cost_us > rank.compute:
        text = f"A step computes {rank.compute / US_PER_MS:.2f} ms, behind which not all of it can be hidden."
        settings.append(Evidence(text, (f"{rank.pointer}/compute_us",)))
        advice += " " + _fewer_bytes_advice(training)
    return Cause(
        cost_us, (0.0, cost_us), (rank.rank,), (evidence, *settings), advice, Confidence.MEDIUM, Basis.BOUND,
        scenario="perfect-overlap", is_counted=True,
    )  # fmt: skip


def _settings_against_overlap(training: Training) -> list[Evidence]:
    """Options of ZeRO that are set so that nothing overlaps."""
    facts, engine = training.facts, "/setup/ranks/0/engine/zero_optimization"
    if facts.number(f"{engine}.stage") is None:
        return []
    return [
        Evidence(f"`{option_name}` of `zero_optimization` is {str(value).lower()}.", (f"{engine}.{setting}",))
        for setting, option_name, value in _OPTIONS_OF_ZERO
        if facts.value(f"{engine}.{setting}") == value
    ]


def _overlap_advice(training: Training, axis: str) -> str:
    facts, engine = training.facts, "/setup/ranks/0/engine/zero_optimization"
    if axis == "TP":
        by_framework = {
            MEGATRON: offer(
                ("`--sequence-parallel`", has_option(training, "--sequence-parallel")),
                ("`--tp-comm-overlap`", has_option(training, "--tp-comm-overlap")),
                ("a smaller tensor-parallel group.", False),
            ),
            TORCH: "a smaller tensor-parallel group, or asynchronous tensor parallelism.",
        }
    else:
        by_framework = {
            DEEPSPEED: ("" if facts.is_true(f"{engine}.overlap_comm") else '`"overlap_comm": true` and ')
            + "larger buckets in `zero_optimization`; with stage 3 a larger `stage3_prefetch_bucket_size`.",
            MEGATRON: offer(
                ("`--overlap-grad-reduce`", has_option(training, "--overlap-grad-reduce")),
                (
                    "`--overlap-param-gather` with `--use-distributed-optimizer`",
                    has_option(training, "--overlap-param-gather"),
                ),
                ("a larger `--global-batch-size`.", False),
            ),
            FSDP: "`set_modules_to_forward_prefetch` and `set_modules_to_backward_prefetch` (FSDP 1: "
            "`forward_prefetch=True`, `BackwardPrefetch.BACKWARD_PRE`), or `reshard_after_forward=False`.",
            DDP: "a smaller `bucket_cap_mb` for the last buckets, `gradient_as_bucket_view=True`, or a larger batch.",
            TORCH: "DistributedDataParallel, which reduces gradients while the backward pass goes on.",
        }
    return "Try " + option(training, by_framework)


def _fewer_bytes_advice(training: Training) -> str:
    """What to try where there is more communication than computation: overlap alone regains little of it."""
    fewer = "Transfer less for as much computation: micro-batches that are added up before a reduction"
    if reduces_halves(training):
        return f"{fewer}."
    return f"{fewer}, and " + option(
        training,
        {
            DEEPSPEED: "`communication_data_type` of bf16.",
            MEGATRON: "`--grad-reduce-in-bf16`.",
            FSDP: "`MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)`.",
            DDP: "`register_comm_hook` with `bf16_compress_hook`.",
            TORCH: "gradients in bf16.",
        },
    )


RULES: Rules = (
    Rule("no_sync", "Gradients reduced in every micro-batch", (Account.COMMUNICATION,), find_repeated_reductions),
    Rule("small_collectives", "Small collectives", (Account.COMMUNICATION,), find_small_collectives),
    Rule(
        "find_unused_parameters",
        "Search for unused parameters",
        (Account.COMPUTE, Account.COMMUNICATION),
        find_unused_parameter_search,
    ),
    Rule(
        "exposed_communication",
        "Exposed communication",
        (Account.COMMUNICATION,),
        find_exposed_communication,
    ),
)
