"""Findings about the devices themselves: their clocks, and the memory that is left."""

from __future__ import annotations

from perfscope.analyzers.findings.facts import Evidence
from perfscope.analyzers.findings.finding import Account, Basis, Cause, Confidence, Rule, Rules
from perfscope.analyzers.findings.memory import free_memory
from perfscope.analyzers.findings.options import DEEPSPEED, MEGATRON, TORCH, TRAINER, option
from perfscope.analyzers.findings.training import LEAST_OWN_LIMIT, POWER_CAP, Training
from perfscope.constants import US_PER_MS
from perfscope.report import percent

#: Fewer throttled steps are an accident.
_FEWEST_STEPS = 0.1
_FREE = 0.5
#: What a step pays once, however large its batch is, as a share of it.
_LARGEST_FIXED = 0.2


def find_throttling(training: Training) -> Cause | None:
    """GPUs that are too hot, braked, or limited to less power than their own limit.

    A GPU that reaches its own power limit while it multiplies is as fast as it can be.
    """
    facts = training.facts
    slowest: Cause | None = None
    for row in facts.rows("/throttling"):
        cause = _throttled(training, row)
        if cause is not None and (slowest is None or cause.cost_us > slowest.cost_us):
            slowest = cause
    return slowest


def _throttled(training: Training, row: str) -> Cause | None:
    facts = training.facts
    gpu = _same_gpu(training, row)
    limit, own = facts.amount(f"{gpu}/power_limit_w"), facts.amount(f"{gpu}/power_limit_default_w")
    is_limited = bool(limit) and limit < LEAST_OWN_LIMIT * own
    covered = facts.amount(f"{row}/known_steps")
    reasons = [
        (facts.text(f"{cause}/cause"), f"{cause}/steps")
        for cause in facts.rows(f"{row}/causes")
        if len(facts.rows(f"{cause}/steps")) >= _FEWEST_STEPS * covered
        and (facts.text(f"{cause}/cause") != POWER_CAP or is_limited)
    ]
    clock, highest = facts.amount(f"{row}/hit_mhz"), facts.amount(f"{gpu}/sm_clock_max_mhz")
    if not reasons or not clock or clock >= highest:
        return None
    compute_us = max((rank.compute for rank in training.ranks), default=training.step_us or 0.0)
    throttled = len(facts.rows(f"{row}/steps")) / covered
    cost_us = compute_us * (1 - clock / highest) * throttled
    names = ", ".join(name for name, _ in reasons)
    evidence = Evidence(
        f"{facts.text(f'{row}/name')} runs at {clock:.0f} of {highest:.0f} MHz in {percent(throttled):.0f} % of the "
        f"steps: {names}.",
        (f"{row}/hit_mhz", f"{gpu}/sm_clock_max_mhz", *(pointer for _, pointer in reasons)),
    )
    if is_limited:
        advice = f"The power limit is {limit:.0f} W, and the GPU's own {own:.0f} W: try `nvidia-smi -pl {own:.0f}`."
    else:
        advice = "Look at the machine's cooling and power supply: `nvidia-smi -q -d TEMPERATURE,POWER,PERFORMANCE`."
    ranks = facts.value(f"{row}/ranks")
    of_ranks = tuple(rank for rank in ranks if isinstance(rank, int)) if isinstance(ranks, (list, tuple)) else ()
    return Cause(cost_us, (0.0, cost_us), of_ranks, (evidence,), advice, Confidence.MEDIUM, Basis.BOUND)


def describe_own_limit(training: Training) -> str:
    """That a GPU reaches its own power limit, which no setting raises; empty where none does in most steps."""
    limit = training.own_limit
    if limit is None:
        return ""
    return (
        f"A GPU's own power limit of {limit.limit_w:.0f} W holds its clock at {limit.clock_mhz:.0f} of "
        f"{limit.highest_mhz:.0f} MHz in {percent(limit.share):.0f} % of the steps, which no setting regains."
    )


def _same_gpu(training: Training, row: str) -> str:
    facts = training.facts
    uuid = facts.text(f"{row}/uuid")
    return next((gpu for gpu in facts.rows("/gpus") if facts.text(f"{gpu}/uuid") == uuid), "")


def find_unused_memory(training: Training) -> Cause | None:
    """Most of the memory is free, and what a step pays once is a large part of it."""
    facts, memory = training.facts, free_memory(training)
    if memory is None or memory.free < _FREE or not training.step_us:
        return None
    # Another optimizer would regain more than another batch; see unfused_optimizer.
    rows = [row for row in facts.rows("/optimizer/ranks") if facts.text(f"{row}/way") == "fused"]
    fixed_us = max((facts.amount(f"{row}/device_us") for row in rows), default=0.0)
    if fixed_us < _LARGEST_FIXED * training.step_us:
        return None
    evidence = (
        Evidence(f"{percent(memory.free):.0f} % of the GPU's memory is never used by tensors.", memory.pointers),
        Evidence(
            f"The optimizer takes {fixed_us / US_PER_MS:.2f} ms of a step, however large the batch is.",
            tuple(f"{row}/device_us" for row in rows[:1]),
        ),
    )
    advice = "Try a larger batch for each step: " + option(
        training,
        {
            TRAINER: "`per_device_train_batch_size` of TrainingArguments.",
            MEGATRON: "`--micro-batch-size` and `--global-batch-size`.",
            DEEPSPEED: "`train_micro_batch_size_per_gpu`.",
            TORCH: "`DataLoader(batch_size=...)`, or accumulation of gradients.",
        },
    )
    cost_us = fixed_us / 2
    return Cause(cost_us, (0.0, cost_us), (), evidence, advice, Confidence.LOW, Basis.BOUND)


RULES: Rules = (
    Rule("throttling", "Throttled GPU", (Account.COMPUTE,), find_throttling),
    Rule("unused_memory", "Unused memory", (Account.COMPUTE,), find_unused_memory),
)
