"""Rules about the host: the device runs out of work, because it loads, waits, allocates or launches too slowly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfscope.analyzers.findings.finding import NEARLY_ALL, NOTABLE, Basis, Fault, Finder, Proof, fact
from perfscope.analyzers.findings.training import (
    LAUNCHING,
    NOT_SHOWN,
    OUTSIDE_OPERATORS,
    MeanStep,
    StepPart,
    TracedRun,
    numbered,
)
from perfscope.constants import MEGA, NS_PER_US, US_PER_MS, US_PER_S
from perfscope.report import MOST_NAMED

if TYPE_CHECKING:
    from perfscope.analyzers.calls import Caller
    from perfscope.analyzers.loop import SeenLine

_PAGEABLE, _TO_HOST = "Pageable -> Device", "Device -> Pageable"
#: Python that every loop has between its operators, as a share of a step; and what a thread that sleeps there has.
_USUAL_PYTHON, _LEAST_SLEEP = 0.4, 0.1
_FRAMEWORKS = ("torch", "deepspeed", "megatron", "transformers", "accelerate", "lightning", "pytorch_lightning")


def find_slow_loading(training: TracedRun) -> Fault | None:
    """Training waits for data loaders: by the hooks, limited to the time that the device has left in a step."""
    waits: dict[int | None, tuple[float, str]] = {}
    busy = {rank.rank: rank.compute + rank.copy for rank in training.ranks if training.has_device}
    for row, rank in training.step_ranks:
        spare_us = max((training.step_us or 0.0) - busy.get(rank.rank, 0.0), 0.0)
        wait_us = (rank.means.data_wait_s or 0.0) * US_PER_S
        waits[rank.rank] = min(wait_us, spare_us) if rank.rank in busy else wait_us, f"{row}/means/data_wait_s"
    if not any(wait_us for wait_us, _ in waits.values()):
        waits = {rank.rank: (rank.host.get("data_loading", 0.0), rank.idle_pointer) for rank in training.ranks}
    slowest = max(waits, key=lambda rank: waits[rank][0], default=None)
    cost_us, pointer = waits.get(slowest, (0.0, ""))
    if not cost_us:
        return None
    slow = sorted(rank for rank in waits if rank is not None and 2 * waits[rank][0] >= cost_us)
    others = " The other ranks wait for these." if len(slow) < len(waits) else ""
    evidence = [fact(f"A step waits {cost_us / US_PER_MS:.2f} ms for the data loader.{others}", pointer)]
    loader = next(iter(training.setup.loaders), None) if training.setup is not None else None
    if loader is not None:
        pinned = "pinned" if loader.pin_memory else "not pinned"
        text = f"The DataLoader has {loader.workers} workers; its batches are {pinned}."
        evidence.append(fact(text, "/setup/ranks/0/loaders/0", "workers"))
    means = next((rank.means for _, rank in training.step_ranks if rank.rank == slowest), None)
    low_us = high_us = cost_us
    if means is not None:
        low_us = min((means.data_wait_low_s or 0.0) * US_PER_S, cost_us)
        high_us = max((means.data_wait_high_s or 0.0) * US_PER_S, cost_us)
    now = f" (now {loader.workers})" if loader is not None and loader.workers else ""
    is_persistent = loader is not None and loader.persistent
    advice = training.advise(
        "slow_data_loading",
        now=now,
        persistent="" if is_persistent else ", persistent_workers=True",
        and_persistent="" if is_persistent else " and `persistent_workers=True`",
    )
    return Fault(
        cost_us, (low_us, high_us), tuple(slow), tuple(evidence), advice,
        scenario="data-loading-free", is_of_all_steps=bool(training.step_ranks),
    )  # fmt: skip


def find_unpinned_copies(training: TracedRun) -> Fault | None:
    """Batches are copied from pageable memory: the copy is slow, and the host waits for it."""
    names = training.kernels("copy", _PAGEABLE)
    blocked = [(row, rank, rank.pageable) for row, rank in training.call_ranks if rank.pageable_bytes]
    if not names or not blocked or not training.ranks:
        return None
    row, rank, pageable = max(blocked, key=lambda entry: entry[2].regained_us)
    copied_us = training.exposed_copies_us(_PAGEABLE)
    evidence = fact(
        f"A step copies {pageable.bytes / MEGA:.1f} MB from memory that is not pinned, and its host is blocked for "
        f"{pageable.blocked_us / US_PER_MS:.2f} ms.",
        f"{row}/pageable",
        "bytes blocked_us",
    )
    loaders = training.setup.loaders if training.setup is not None else ()
    is_pinned = bool(loaders) and all(loader.pin_memory for loader in loaders)
    advice = training.advise(f"unpinned_copies{'_beside_pinned_batches' if is_pinned else ''}")
    interval = min(copied_us, pageable.regained_us), pageable.regained_us + copied_us
    cost_us = max(pageable.regained_us, copied_us)
    return Fault(cost_us, interval, (rank.rank,), (evidence,), advice, basis=Basis.BOUND)


def find_garbage_collection(training: TracedRun) -> Fault | None:
    """Full collections of Python's garbage interrupt steps; on several ranks each one makes the others wait."""
    collecting = [(row, rank, rank.means.garbage_s) for row, rank in training.step_ranks if rank.means.garbage_s]
    loop, cost_us = training.results.loop, 0.0
    if collecting:
        row, rank, garbage_s = max(collecting, key=lambda entry: entry[2])
        count, cost_us, of_rank = rank.means.garbage_steps, garbage_s * US_PER_S, rank.rank
        evidence = fact(
            f"Full collections of Python's garbage interrupted {count} of {rank.undisturbed} steps, for "
            f"{cost_us * rank.undisturbed / max(count, 1) / US_PER_MS:.1f} ms each.",
            f"{row}/means",
            "garbage_s garbage_steps",
        )
    elif loop is not None and loop.garbage_ns:
        text = (
            f"Full collections of Python's garbage took {loop.garbage_s:.2f} s, beside evaluations, saves or windows."
        )
        of_rank, evidence = loop.rank, fact(text, "/loop", "garbage_s")
    else:
        return None
    is_off = training.setup is not None and training.setup.collects_garbage is False
    advice = training.advise(f"garbage_collection{'_by_the_script' if is_off else ''}")
    of_ranks = tuple(rank.rank for _, rank, _ in collecting) or (of_rank,)
    if loop is not None and loop.rank == of_rank:
        cost_us = loop.garbage_ns / NS_PER_US / loop.steps
    interval = cost_us, cost_us * len(of_ranks)
    return Fault(cost_us, interval, of_ranks, (evidence,), advice, is_of_all_steps=True)


def find_recompilation(training: TracedRun) -> Fault | None:
    """torch.compile still compiles after the first steps."""
    compiling = [entry for entry in training.step_ranks if entry[1].means.compiled_steps]
    if not compiling:
        return None
    row, rank = max(compiling, key=lambda entry: entry[1].means.compile_s or 0.0)
    cost_us = (rank.means.compile_s or 0.0) * US_PER_S
    evidence = fact(
        f"torch.compile compiled in {rank.means.compiled_steps} steps after the first five, "
        f"{cost_us / US_PER_MS:.1f} ms in a mean step.",
        f"{row}/means",
        "compiled_steps compile_s",
    )
    advice = training.advise("recompilation")
    of_ranks = tuple(rank.rank for _, rank in compiling)
    return Fault(cost_us, (cost_us, cost_us), of_ranks, (evidence,), advice)


def find_blocking_saves(training: TracedRun) -> Fault | None:
    """Checkpoint saves stall training; spread over all steps."""
    saves, steps = training.results.saves, training.results.steps
    if saves is None or steps is None or not saves.saves or not saves.blocked_s or not steps.count:
        return None
    cost_us = saves.blocked_s * US_PER_S / steps.count
    asynchronous = sum(save.asynchronous is True for save in saves.saves)
    is_async = asynchronous == len(saves.saves)
    evidence = Proof(
        f"{len(saves.saves)} checkpoints stalled training for {saves.blocked_s:.2f} s in {steps.count} steps.",
        ("/results/saves/blocked_s", "/results/steps/count"),
    )
    advice = f"Try {training.advise('blocking_saves', 'asynchronous' if is_async else '')}"
    return Fault(cost_us, (0.0, cost_us), (), (evidence,), advice)


def find_synchronisations(training: TracedRun) -> Fault | None:
    """Calls that wait for the device, by who makes them."""
    regained_us = {row: rank.synchronisation.regained_us for row, rank in training.call_ranks}
    row, rank = max(training.call_ranks, key=lambda entry: regained_us[entry[0]], default=("", None))
    if rank is None:
        return None
    callers = [
        (place, caller)
        for place, caller in numbered(f"{row}/callers", rank.callers)
        if caller.kind == "synchronisation" and caller.regained
    ]
    if not callers:
        return None
    cost_us = regained_us[row] + training.exposed_copies_us(_TO_HOST)
    evidence = tuple(
        fact(
            f"{caller.operator or 'a call outside of operators'}{f' in {caller.function}' if caller.function else ''} "
            f"waits {caller.calls:.0f} times a step, {caller.blocked_us / US_PER_MS:.2f} ms.",
            place,
            "calls blocked_us regained_us",
        )
        for place, caller in callers[:MOST_NAMED]
    )
    of_ranks = tuple(rank.rank for row, rank in training.call_ranks if 2 * regained_us[row] >= cost_us)
    advice = _advise_waiting(training, callers[0][1])
    return Fault(cost_us, (cost_us / 2, cost_us), of_ranks, evidence, advice, basis=Basis.BOUND)


def _advise_waiting(training: TracedRun, caller: Caller) -> str:
    line = "" if caller.function else " `perfscope profile --stack` names the line."
    if not caller.operator:
        is_timed = training.has_option("--timing-log-level")
        has_barrier = not training.has_option("--no-barrier-with-level-1-timing")
        is_unbroken = training.setup is not None and training.setup.engine.get("wall_clock_breakdown") is False
        in_use = "" if is_timed and has_barrier else "untimed", "unbroken" if is_unbroken else ""
        timers = training.advise("synchronisation_of_timers", *in_use)
        return f"Remove `torch.cuda.synchronize()` and timers from the loop{timers}.{line}"
    if any(word in caller.operator for word in ("nonzero", "masked", "unique")):
        return (
            f"Replace selection by a mask with `torch.where` or a product, whose shape does not depend on data.{line}"
        )
    option = "--no-check-for-nan-in-loss-and-grad"
    how = training.advise("synchronisation", check="" if training.has_option(option) else f", `{option}`")
    return f"Collect the values on the device, and read them every hundred steps {how}.{line}"


def find_allocations(training: TracedRun) -> Fault | None:
    """Steps ask the driver for memory: each call holds the host up, and freeing waits for the device."""
    row, rank = max(training.call_ranks, key=lambda entry: entry[1].allocation.blocked_us, default=("", None))
    if rank is None or not rank.allocation.calls:
        return None
    allocation = rank.allocation
    evidence = [
        fact(
            f"A step calls cudaMalloc and cudaFree {allocation.calls:.0f} times, for "
            f"{allocation.blocked_us / US_PER_MS:.2f} ms.",
            f"{row}/allocation",
            "calls blocked_us regained_us",
        )
    ]
    for place, entry in training.step_ranks:
        retries = entry.means.alloc_retries
        if entry.rank == rank.rank and retries:
            text = f"The allocator freed its cache and tried again {retries:.2f} times a step: memory is nearly full."
            evidence.append(fact(text, f"{place}/means", "alloc_retries"))
    if len(evidence) > 1:
        advice = f"Try {training.advise('allocator_of_full_memory', *training.in_use)}"
    else:
        advice = f"{training.advise('allocator', *training.in_use)}."
    cost_us = allocation.regained_us
    return Fault(cost_us, (cost_us / 2, cost_us), (rank.rank,), tuple(evidence), advice, basis=Basis.BOUND)


def find_host_pauses(training: TracedRun) -> Fault | None:
    """The host does something for milliseconds that the trace does not show, or Python that its stacks name."""
    rank = max(training.ranks, key=_pause_us, default=None)
    if rank is None:
        return None
    cost_us, least_us, seen_place = _pause_us(rank), 0.0, None
    if cost_us <= 0:
        return None
    if training.has_device:
        evidence = [
            fact(
                f"The device waits {cost_us / US_PER_MS:.2f} ms a step for pauses of the host of 1 ms or more "
                "in which no operator runs.",
                f"{rank.idle_pointer}/marked",
                f"{NOT_SHOWN}_us",
            )
        ]
    else:
        # The profiler slows Python: a step that nobody profiled has no more time beside its operators.
        of_operators = rank.compute + rank.communication + rank.host.get("data_loading", 0.0)
        cost_us = min(cost_us, max(training.median_us - of_operators, 0.0))
        step_us, loop = rank.compute + rank.communication + rank.waits_for_host, training.results.loop
        sleeps = loop is not None and loop.blocked_s * US_PER_S >= NEARLY_ALL * cost_us
        least_us = (_LEAST_SLEEP if sleeps else _USUAL_PYTHON) * step_us
        delay_ns = loop.delays_ns.get(rank.rank or 0, 0) if loop is not None else 0
        if cost_us - delay_ns / NS_PER_US < least_us:  # the trace does not tell a thread that waits for a processor
            return None
        line = _find_busy_line(training, rank.rank, cost_us / step_us)
        seen_place = line.place if line is not None else None
        seen = f": the training thread is in {line.place} for {line.share:.0%} of the time" if line is not None else ""
        text = f"No operator runs for {cost_us / US_PER_MS:.2f} ms of a step{seen}."
        evidence = [fact(text, rank.pointer, "other_us")]
        host = training.results.host.ranks[training.ranks.index(rank)] if training.results.host is not None else None
        outside = numbered(f"{rank.pointer}/outside_operators", host.outside_operators if host is not None else ())
        for place, entry in outside[:MOST_NAMED]:
            if entry.function:
                called = f", which calls {entry.call}" if entry.call else ""
                text = f"{entry.us / rank.steps / US_PER_MS:.2f} ms in {entry.function}{called}."
                evidence.append(fact(text, place, "function us"))
                seen_place = seen_place or entry.function
    if len(evidence) > 1 or training.has_stacks:
        advice = "Move this work into the workers of the DataLoader, a thread, or out of the loop."
    else:
        advice = (
            "Move this work into a DataLoader worker or out of the loop; `perfscope profile --stack` shows all of it."
        )
    interval = cost_us / 2, cost_us
    return Fault(cost_us, interval, (rank.rank,), tuple(evidence), advice, least_us=least_us, place=seen_place)


def _find_busy_line(training: TracedRun, rank: int | None, share: float) -> SeenLine | None:
    """Of the script's lines that call no framework, where a rank's thread is often, the one of about this share."""
    lines = training.results.loop.lines if training.results.loop is not None else ()
    busy = [line for line in lines if not line.calls.startswith(_FRAMEWORKS) and line.share >= NOTABLE]
    return min((line for line in busy if line.rank == rank), key=lambda line: abs(line.share - share), default=None)


def _pause_us(rank: MeanStep) -> float:
    return rank.host.get(NOT_SHOWN, 0.0) + rank.host.get(OUTSIDE_OPERATORS, 0.0)


def find_slow_launches(training: TracedRun) -> Fault | None:
    """The device waits for the launches of the host."""
    rank = max(training.ranks, key=lambda rank: rank.launches, default=None)
    if rank is None or not training.has_device:
        return None
    cost_us = rank.launches
    longest = sorted(LAUNCHING, key=lambda cause: -rank.host[cause])[:MOST_NAMED]
    parts = ", ".join(f"{cause.replace('_', ' ')} {rank.host[cause] / US_PER_MS:.2f} ms" for cause in longest)
    evidence = [
        fact(
            f"The device waits {cost_us / US_PER_MS:.2f} ms of a step for launches: {parts}.",
            f"{rank.idle_pointer}/marked",
            " ".join(f"{cause}_us" for cause in LAUNCHING),
        )
    ]
    advice = f"Try {training.advise('host_bound', *training.in_use)}, or {training.advise('larger_batch')}."
    return Fault(
        cost_us, (0.0, cost_us), (rank.rank,), tuple(evidence), advice, basis=Basis.BOUND, scenario="launch-free"
    )  # fmt: skip


_AND_WAITS = StepPart.HOST, StepPart.COMMUNICATION
RULES = (
    Finder("slow_data_loading", "Slow data loading", _AND_WAITS, find_slow_loading),
    Finder("unpinned_copies", "Unpinned copies", (StepPart.HOST,), find_unpinned_copies),
    Finder("garbage_collection", "Garbage collection", _AND_WAITS, find_garbage_collection),
    Finder("recompilation", "Recompilation", (StepPart.OUTSIDE,), find_recompilation),
    Finder("blocking_saves", "Blocking checkpoint saves", (StepPart.OUTSIDE,), find_blocking_saves),
    Finder("synchronisation", "Synchronisation", (StepPart.HOST,), find_synchronisations),
    Finder("allocator", "Memory allocated in steps", (StepPart.HOST,), find_allocations),
    Finder("host_pauses", "Time outside of PyTorch", (StepPart.HOST,), find_host_pauses, is_rest=True),
    Finder("host_bound", "Host-bound launches", (StepPart.HOST,), find_slow_launches, is_rest=True),
)
