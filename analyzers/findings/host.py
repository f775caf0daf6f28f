"""Findings about the host: the device runs out of work, because the host waits, allocates, or launches too slowly."""

from __future__ import annotations

from perfscope.analyzers.findings.facts import Evidence
from perfscope.analyzers.findings.finding import Account, Basis, Cause, Confidence, Rule, Rules
from perfscope.analyzers.findings.in_use import (
    has_expandable_segments,
    has_option,
    has_stacks,
    is_compiled,
    offer,
)
from perfscope.analyzers.findings.memory import free_memory
from perfscope.analyzers.findings.options import DEEPSPEED, LIGHTNING, MEGATRON, TORCH, TRAINER, fetches_in_turn, option
from perfscope.analyzers.findings.training import RankStep, Training
from perfscope.constants import US_PER_MS
from perfscope.report import percent

_LAUNCHING = ("cuda_call", "operator", "between_operators", "host_launch", "launch_latency")
#: A kernel that is shorter takes less time than its launch.
_SHORTEST_KERNEL_US = 8.0
_MOST_MEMORY = 0.5
_OUTSIDE = "outside_operators"
_TO_HOST = "Device -> Pageable"
#: Python that every loop has between its operators, as a share of a step.
_USUAL_PYTHON = 0.4
_MOST_NAMED = 3
_ALSO = 0.5


def find_synchronisations(training: Training) -> Cause | None:
    """Calls that wait for the device, by who makes them."""
    facts = training.facts
    rows = facts.rows("/calls/ranks")
    row = max(rows, key=lambda row: facts.amount(f"{row}/synchronisation/regained_us"), default=None)
    if row is None:
        return None
    cost_us = facts.amount(f"{row}/synchronisation/regained_us") + training.exposed_copies_us(_TO_HOST)
    callers = _waiting_callers(training, row)
    if not callers:
        return None
    if fetches_in_turn(training):
        cost_us = sum(facts.amount(f"{caller}/regained_us") for caller in callers)
    evidence = []
    for caller in callers[:_MOST_NAMED]:
        who = facts.text(f"{caller}/operator") or "a call outside of operators"
        line = facts.text(f"{caller}/function")
        evidence.append(
            Evidence(
                f"{who}{f' in {line}' if line else ''} waits {facts.amount(f'{caller}/calls'):.0f} times a step, "
                f"{facts.amount(f'{caller}/blocked_us') / US_PER_MS:.2f} ms.",
                (
                    *([f"{caller}/operator"] if facts.text(f"{caller}/operator") else []),
                    f"{caller}/calls",
                    f"{caller}/blocked_us",
                    f"{caller}/regained_us",
                ),
            )
        )
    ranks = _also(training, "/calls/ranks", "synchronisation/regained_us", cost_us)
    advice = _advise_waiting(training, callers[0])
    return Cause(cost_us, (cost_us / 2, cost_us), ranks, tuple(evidence), advice, basis=Basis.BOUND)


def _advise_waiting(training: Training, caller: str) -> str:
    """What to try against the waits of a caller."""
    facts = training.facts
    lines = "" if facts.text(f"{caller}/function") else " `perfscope profile --stack` names the line."
    operator = facts.text(f"{caller}/operator")
    if not operator:
        loop = {
            MEGATRON: ", and try `--timing-log-level 0` with `--no-barrier-with-level-1-timing`"
            if has_option(training, "--timing-log-level")
            and not has_option(training, "--no-barrier-with-level-1-timing")
            else "",
            DEEPSPEED: ', and try `"wall_clock_breakdown": false`'
            if facts.value("/setup/ranks/0/engine/wall_clock_breakdown") is not False
            else "",
            TORCH: "",
        }
        advice = f"Remove `torch.cuda.synchronize()` and timers from the loop{option(training, loop)}.{lines}"
    elif "nonzero" in operator or "masked" in operator or "unique" in operator:
        advice = (
            f"Replace selection by a mask with `torch.where` or a product, whose shape does not depend on data.{lines}"
        )
    else:
        advice = (
            "Collect the values on the device, and read them every hundred steps "
            + option(
                training,
                {
                    TRAINER: "(`logging_steps`, and `logging_nan_inf_filter=False` of TrainingArguments)",
                    LIGHTNING: "(`log_every_n_steps` of the Trainer, `self.log(loss.detach())`)",
                    MEGATRON: "(`--log-interval`)"
                    if has_option(training, "--no-check-for-nan-in-loss-and-grad")
                    else "(`--log-interval`, `--no-check-for-nan-in-loss-and-grad`)",
                    TORCH: "with one `.tolist()`, or copy them with `non_blocking=True` into pinned memory",
                },
            )
            + f".{lines}"
        )
    return advice


def _waiting_callers(training: Training, row: str) -> list[str]:
    """Who waits for the device and loses time by it; without the engine's own waits for parameters that it fetches."""
    facts, is_of_engine = training.facts, fetches_in_turn(training)
    return [
        caller
        for caller in facts.rows(f"{row}/callers")
        if facts.text(f"{caller}/kind") == "synchronisation"
        and facts.amount(f"{caller}/regained_us")
        and (facts.text(f"{caller}/operator") or not is_of_engine)
    ]


def _also(training: Training, rows: str, name: str, cost_us: float) -> tuple[int, ...]:
    """The ranks on which a figure is at least half of the largest."""
    facts = training.facts
    return tuple(facts.rank(row) for row in facts.rows(rows) if facts.amount(f"{row}/{name}") >= _ALSO * cost_us)


def find_allocations(training: Training) -> Cause | None:
    """Steps ask the driver for memory: each call holds the host up, and freeing waits for the device."""
    facts = training.facts
    row = max(facts.rows("/calls/ranks"), key=lambda row: facts.amount(f"{row}/allocation/blocked_us"), default=None)
    if row is None or not facts.amount(f"{row}/allocation/calls"):
        return None
    cost_us = facts.amount(f"{row}/allocation/regained_us")
    evidence = [
        Evidence(
            f"A step calls cudaMalloc and cudaFree {facts.amount(f'{row}/allocation/calls'):.0f} times, for "
            f"{facts.amount(f'{row}/allocation/blocked_us') / US_PER_MS:.2f} ms.",
            (f"{row}/allocation/calls", f"{row}/allocation/blocked_us", f"{row}/allocation/regained_us"),
        )
    ]
    for caller in facts.rows("/steps/ranks"):
        retries = facts.number(f"{caller}/means/alloc_retries")
        if facts.rank(caller) == facts.rank(row) and retries:
            text = f"The allocator freed its cache and tried again {retries:.2f} times a step: memory is nearly full."
            evidence.append(Evidence(text, (f"{caller}/means/alloc_retries",)))
    segments = "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`", has_expandable_segments(training)
    if len(evidence) > 1:
        advice = f"Try {offer(segments, ('a smaller micro-batch', False), ('fewer lengths.', False))}"
    else:
        removed = "Remove `torch.cuda.empty_cache()` from the loop", False
        advice = f"{offer(removed, (f'try {segments[0]}', segments[1]))}."
    return Cause(cost_us, (cost_us / 2, cost_us), (facts.rank(row),), tuple(evidence), advice, basis=Basis.BOUND)


def find_host_pauses(training: Training) -> Cause | None:
    """The host does something for milliseconds that the trace does not show, or Python that its stacks name."""
    rank = max(training.ranks, key=_pause_us, default=None)
    if rank is None:
        return None
    facts, cost_us = training.facts, _pause_us(rank)
    if training.has_device:
        pointer = f"{rank.idle_pointer}/marked/not_shown_us"
        evidence = [
            Evidence(
                f"The device waits {cost_us / US_PER_MS:.2f} ms a step for pauses of the host of 1 ms or more "
                "in which no operator runs.",
                (pointer,),
            )
        ]
    else:
        step_us = rank.compute + rank.communication + rank.waits_for_host
        if cost_us < _USUAL_PYTHON * step_us:
            return None
        evidence = [
            Evidence(f"No operator runs for {cost_us / US_PER_MS:.2f} ms of a step.", (f"{rank.pointer}/other_us",))
        ]
        for row in facts.rows(f"{rank.pointer}/outside_operators")[:_MOST_NAMED]:
            if facts.text(f"{row}/function"):
                called = facts.text(f"{row}/call")
                text = f"{facts.amount(f'{row}/us') / rank.steps / US_PER_MS:.2f} ms in {facts.text(f'{row}/function')}"
                evidence.append(
                    Evidence(f"{text}{f', which calls {called}' if called else ''}.", (f"{row}/function", f"{row}/us"))
                )
    if len(evidence) > 1 or has_stacks(training):
        advice = "Move this work into the workers of the DataLoader, a thread, or out of the loop."
    else:
        advice = "`perfscope profile --stack` names the function; move it into a DataLoader worker or out of the loop."
    return Cause(cost_us, (cost_us / 2, cost_us), (rank.rank,), tuple(evidence), advice, confidence=Confidence.MEDIUM)


def _pause_us(rank: RankStep) -> float:
    return rank.host.get("not_shown", 0.0) + rank.host.get(_OUTSIDE, 0.0)


def _launch_us(rank: RankStep) -> float:
    return sum(rank.host.get(cause, 0.0) for cause in _LAUNCHING)


def _mean_kernel_us(training: Training) -> float | None:
    """The mean duration of a kernel that computes."""
    facts = training.facts
    rows = [row for row in facts.rows("/kernels/names") if facts.text(f"{row}/work") == "compute"]
    calls = sum(facts.amount(f"{row}/calls") for row in rows)
    return sum(facts.amount(f"{row}/total_us") for row in rows) / calls if calls else None


def find_small_batch(training: Training) -> Cause | None:
    """Kernels are shorter than their launches, and most of the memory is free: the batch could be larger."""
    rank = max(training.ranks, key=_launch_us, default=None)
    kernel_us, memory = _mean_kernel_us(training), free_memory(training)
    if rank is None or not training.has_device or kernel_us is None or memory is None:
        return None
    if kernel_us >= _SHORTEST_KERNEL_US or memory.free < _MOST_MEMORY:
        return None
    cost_us = _launch_us(rank)
    evidence = (
        Evidence(f"A kernel takes {kernel_us:.1f} us on average, less than its launch.", ("/kernels/names",)),
        Evidence(f"{percent(memory.free):.0f} % of the GPU's memory is never used by tensors.", memory.pointers),
    )
    advice = "Try a larger micro-batch, " + option(
        training,
        {
            TRAINER: "`per_device_train_batch_size` of TrainingArguments.",
            MEGATRON: "`--micro-batch-size`.",
            TORCH: "`DataLoader(batch_size=...)`: a step takes about as long with a batch several times larger.",
        },
    )
    return Cause(cost_us, (cost_us / 2, cost_us), (rank.rank,), evidence, advice, basis=Basis.BOUND)


def find_slow_launches(training: Training) -> Cause | None:
    """The device waits for the launches of the host."""
    rank = max(training.ranks, key=_launch_us, default=None)
    if rank is None or not training.has_device:
        return None
    cost_us = _launch_us(rank)
    parts = ", ".join(
        f"{cause.replace('_', ' ')} {rank.host[cause] / US_PER_MS:.2f} ms"
        for cause in sorted(_LAUNCHING, key=lambda cause: -rank.host.get(cause, 0.0))[:_MOST_NAMED]
        if rank.host.get(cause)
    )
    pointers = tuple(f"{rank.idle_pointer}/marked/{cause}_us" for cause in _LAUNCHING)
    evidence = (Evidence(f"The device waits {cost_us / US_PER_MS:.2f} ms of a step for launches: {parts}.", pointers),)
    advice = "Try " + option(
        training,
        {
            TRAINER: offer(
                ("`torch_compile=True` of TrainingArguments", is_compiled(training)),
                ("a larger `per_device_train_batch_size`.", False),
            ),
            MEGATRON: offer(
                ("`--cuda-graph-impl local`", has_option(training, "--cuda-graph-impl")),
                ("a larger `--micro-batch-size`.", False),
            ),
            TORCH: 'CUDA graphs (the `mode` "reduce-overhead" of torch.compile), or a larger batch.'
            if is_compiled(training)
            else '`torch.compile(model, mode="reduce-overhead")` (CUDA graphs), or a larger batch.',
        },
    )
    return Cause(cost_us, (0.0, cost_us), (rank.rank,), evidence, advice, basis=Basis.BOUND, scenario="launch-free")


RULES: Rules = (
    Rule("synchronisation", "Synchronisation", (Account.HOST,), find_synchronisations),
    Rule("allocator", "Memory allocated in steps", (Account.HOST,), find_allocations),
    Rule("host_pauses", "Pauses of the host", (Account.HOST,), find_host_pauses),
    Rule("small_batch", "Batch too small", (Account.HOST,), find_small_batch),
    Rule("host_bound", "Host-bound launches", (Account.HOST,), find_slow_launches),
)
