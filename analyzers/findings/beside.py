"""Findings about what training does beside its steps: garbage collection, recompilation, checkpoint saves."""

from __future__ import annotations

from perfscope.analyzers.findings.facts import Evidence
from perfscope.analyzers.findings.finding import Account, Cause, Confidence, Rule, Rules
from perfscope.analyzers.findings.in_use import has_option, offer, saves_beside_training
from perfscope.analyzers.findings.options import DEEPSPEED, LIGHTNING, MEGATRON, TORCH, TRAINER, option
from perfscope.analyzers.findings.training import Training
from perfscope.constants import US_PER_MS, US_PER_S

#: Fewer compilations behind the first steps are the last of the first ones.
_FEWEST_COMPILED_STEPS = 3


def find_garbage_collection(training: Training) -> Cause | None:
    """Full collections of Python's garbage interrupt steps; on several ranks each one makes the others wait."""
    facts = training.facts
    rows = [row for row in facts.rows("/steps/ranks") if facts.amount(f"{row}/means/garbage_s")]
    if not rows:
        return None
    row = max(rows, key=lambda row: facts.amount(f"{row}/means/garbage_s"))
    cost_us = facts.amount(f"{row}/means/garbage_s") * US_PER_S
    steps = int(facts.amount(f"{row}/means/garbage_steps"))
    pause_us = cost_us * facts.amount(f"{row}/undisturbed") / max(steps, 1)
    evidence = Evidence(
        f"Full collections of Python's garbage interrupted {steps} of {int(facts.amount(f'{row}/undisturbed'))} steps, "
        f"for {pause_us / US_PER_MS:.1f} ms each.",
        (f"{row}/means/garbage_s", f"{row}/means/garbage_steps"),
    )
    is_off = facts.value("/setup/ranks/0/collects_garbage") is False
    advice = "Try " + option(
        training,
        {
            MEGATRON: "a larger `--manual-gc-interval`.",
            TORCH: "`gc.collect(1)` in place of full collections, or fewer of them.",
        }
        if is_off
        else {
            MEGATRON: "`--manual-gc --manual-gc-interval 100`.",
            TORCH: "`gc.freeze()` behind the set-up and `gc.disable()`, with `gc.collect(1)` every hundred steps on "
            "all ranks at once.",
        },
    )
    ranks = tuple(facts.rank(slow) for slow in rows)
    interval = cost_us, cost_us * max(len(rows), 1)
    return Cause(cost_us, interval, ranks, (evidence,), advice, is_of_all_steps=True)


def find_recompilation(training: Training) -> Cause | None:
    """torch.compile still compiles behind the first steps."""
    facts = training.facts
    rows = [
        row
        for row in facts.rows("/steps/ranks")
        if facts.amount(f"{row}/means/compiled_steps") >= _FEWEST_COMPILED_STEPS
    ]
    if not rows:
        return None
    row = max(rows, key=lambda row: facts.amount(f"{row}/means/compile_s"))
    cost_us = facts.amount(f"{row}/means/compile_s") * US_PER_S
    evidence = Evidence(
        f"torch.compile compiled in {int(facts.amount(f'{row}/means/compiled_steps'))} steps behind the first five, "
        f"{cost_us / US_PER_MS:.1f} ms in a mean step.",
        (f"{row}/means/compiled_steps", f"{row}/means/compile_s"),
    )
    advice = (
        "Find the changing shape or value with `TORCH_LOGS=recompiles`, then try `torch.compile(dynamic=True)`, "
        "`torch._dynamo.mark_dynamic`, or samples of few lengths."
    )
    is_in_steps = facts.amount(f"{row}/means/compile_in_steps_s") > 0
    ranks = tuple(facts.rank(slow) for slow in rows)
    return Cause(cost_us, (cost_us, cost_us), ranks, (evidence,), advice, is_beside=not is_in_steps)


def find_blocking_saves(training: Training) -> Cause | None:
    """Checkpoint saves stall training; spread over all steps."""
    facts = training.facts
    blocked_us = facts.amount("/saves/blocked_s") * US_PER_S
    steps = facts.amount("/steps/count")
    saves = facts.rows("/saves/saves")
    if not blocked_us or not steps or not saves:
        return None
    cost_us = blocked_us / steps
    blocking = [row for row in saves if facts.value(f"{row}/asynchronous") is not True]
    evidence = Evidence(
        f"{len(saves)} checkpoints stalled training for {blocked_us / US_PER_S:.2f} s in {int(steps)} steps.",
        ("/saves/blocked_s", "/steps/count"),
    )
    is_beside = saves_beside_training(training)
    advice = "Try " + option(
        training,
        {
            MEGATRON: offer(
                ("`--async-save` with `--ckpt-format torch_dist`", is_beside or has_option(training, "--async-save")),
                ("a larger `--save-interval`.", False),
            ),
            TRAINER: "a larger `save_steps` of TrainingArguments, or `save_only_model=True` where no restart needs it.",
            LIGHTNING: offer(
                ("`AsyncCheckpointIO` as a plugin of the Trainer", is_beside),
                ("a larger `every_n_train_steps`.", False),
            ),
            DEEPSPEED: '`"checkpoint": {"writer": {"type": "fast"}}`, or to save less often.',
            TORCH: offer(("`torch.distributed.checkpoint.async_save`", is_beside), ("to save less often.", False)),
        },
    )
    confidence = Confidence.HIGH if len(blocking) == len(saves) else Confidence.MEDIUM
    return Cause(cost_us, (0.0, cost_us), (), (evidence,), advice, confidence=confidence, is_beside=True)


RULES: Rules = (
    Rule("garbage_collection", "Garbage collection", (Account.HOST, Account.COMMUNICATION), find_garbage_collection),
    Rule("recompilation", "Recompilation", (Account.BESIDE,), find_recompilation),
    Rule("blocking_saves", "Blocking checkpoint saves", (Account.BESIDE,), find_blocking_saves),
)
