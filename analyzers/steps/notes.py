"""What a reader must know of step times: what ends a step, which steps are excluded, and what stalled training."""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.analyzers.shared.statistics import median
from perfscope.analyzers.shared.step_selection import (
    Selection,
    UndisturbedSteps,
    job_times_s,
    steps_beside_save,
    times_without_stall_s,
)
from perfscope.analyzers.shared.window_effect import Verdict, WindowEffect
from perfscope.analyzers.steps.result import RankSteps
from perfscope.constants import MS_PER_S, NS_PER_MS, NS_PER_S
from perfscope.frameworks import STEP_BOUNDARIES
from perfscope.tables.columns import present
from perfscope.tables.run import Run
from perfscope.tables.steps import FEWEST_STEPS, Steps
from perfscope.units import format_count, format_ranges
from perfscope.wire import LIGHT

#: Its warm-up, and a step that is profiled.
_FEWEST_FOR_WINDOW = 2
#: A larger difference between the step times of a job's ranks is not their jitter.
_DISAGREEMENT = 0.01


def write_notes(run: Run, ranks: Sequence[RankSteps], undisturbed: UndisturbedSteps) -> tuple[str, ...]:
    """The notes below the table of steps."""
    tables = undisturbed.tables
    notes = [f"Step boundary: {_boundary(str(tables[0].source[-1]))}."]
    notes += _on_capture(run)
    notes += _on_undisturbed_steps(ranks, undisturbed)
    notes += _on_disagreement(ranks)
    if undisturbed.effect is not None:
        notes += _on_effect(undisturbed.effect)
    if any(rank.first_s is None for rank in ranks):
        notes.append(
            "First is n/a: no hook saw the first step begin. A DataLoader, a wrapped model (DDP, FSDP) or a step of a "
            "framework would show it."
        )
    notes += _on_windows(run)
    notes += describe_unreached_windows(run, max(rank.count for rank in ranks))
    notes += _on_saves(undisturbed)
    notes += _on_validation(tables)
    counts = {rank.count for rank in ranks}
    if len(counts) > 1:
        notes.append(
            f"Ranks completed different numbers of steps: {min(counts)} to {max(counts)}. Step times are over those "
            "that all have."
        )
    skipped = max(rank.skipped for rank in ranks)
    if skipped:
        notes.append(f"{skipped} steps did not update the weights (loss scale overflow); they are counted as steps.")
    restarted = sorted({table.rank for table in run.steps if table.attempt > 0})
    if restarted:
        notes.append(f"Ranks {restarted} started more than once; the last start is shown.")
    return tuple(notes)


def _boundary(source: str) -> str:
    """What completes a step; the source of steps itself where its framework is no longer hooked."""
    boundary = STEP_BOUNDARIES.get(source)
    return source if boundary is None else boundary.event


def _on_capture(run: Run) -> list[str]:
    """What the ranks noted as they were captured, each text once, with the ranks where not all of them noted it."""
    ranks_by_note: dict[str, set[int]] = {}
    for rank in run.ranks:
        for text in rank.notes:
            ranks_by_note.setdefault(text, set()).add(rank.rank)
    everybody = {rank.rank for rank in run.ranks}
    return [
        f"{text[0].upper()}{text[1:]}." if ranks == everybody else f"Ranks {sorted(ranks)}: {text}."
        for text, ranks in ranks_by_note.items()
        if text
    ]


def _on_undisturbed_steps(ranks: Sequence[RankSteps], undisturbed: UndisturbedSteps) -> list[str]:
    found, chosen = len(undisturbed.steady), len(undisturbed.numbers)
    if not chosen:
        has_window = any((table.window != "").any() for table in undisturbed.tables)
        fewer = ", or profile fewer of them (`--steps`, `--window light`)" if has_window else ""
        return [
            f"No step time, median, throughput or MFU: {format_count(found, 'steady-state step')}, and these need "
            f"{FEWEST_STEPS}. Start-up, windows, checkpoint saves or validation affected the others. Train for at "
            f"least {format_count(FEWEST_STEPS - found, 'more step')}{fewer}."
        ]
    excluded = max(rank.count for rank in ranks) - chosen
    also = ", and those after the first window" if chosen < found else ""
    if undisturbed.ahead:
        also += f", and {undisturbed.ahead} in which hosts only ran ahead of their devices"
    return [
        f"Step time, median and p95 are over {chosen} steady-state steps; {excluded} steps are excluded: the first "
        "ones, profiled ones, their warm-up, the step after an export, steps with a checkpoint save, a validation or a "
        f"compilation{also}."
    ]


def _on_disagreement(ranks: Sequence[RankSteps]) -> list[str]:
    """Ranks of a job cannot drift apart: they are ahead of each other by a step or so, not by more and more."""
    times = sorted((rank.step_time_s, rank.rank) for rank in ranks if rank.step_time_s is not None)
    if len(times) < 2:  # noqa: PLR2004 - one rank agrees with itself
        return []
    (least_s, first), (most_s, last) = times[0], times[-1]
    if most_s - least_s <= max(_DISAGREEMENT * least_s, most_s / ranks[0].undisturbed):
        return []
    return [
        f"Ranks disagree on the step time by {most_s / least_s - 1:.1%}: {least_s * MS_PER_S:.2f} ms on rank {first}, "
        f"{most_s * MS_PER_S:.2f} ms on rank {last}. In one job that cannot be: their steps or their clocks differ."
    ]


def _on_effect(effect: WindowEffect) -> list[str]:
    """Whether the steps behind the first window differ from those before it, and what follows from that."""
    if effect.verdict is Verdict.UNTESTED:
        if not effect.after:
            return []
        advice = " Profile later steps, such as `--steps 20-22`." if effect.before < FEWEST_STEPS else ""
        return [f"Whether the window slowed the steps behind it was not tested: {effect.reason}.{advice}"]
    if effect.before_s is None or effect.after_s is None or effect.change_low is None or effect.change_high is None:
        return []
    medians = (
        f"median {effect.after_s * MS_PER_S:.2f} ms behind the first window and {effect.before_s * MS_PER_S:.2f} ms "
        f"before it ({effect.change or 0:+.1%}, 99 % interval {effect.change_low:+.1%} to {effect.change_high:+.1%})"
    )
    texts = {
        Verdict.SLOWER: f"The window slowed the steps behind it: {medians}. Step time, throughput, MFU and energy "
        f"are of the {effect.before} steps before the window.",
        Verdict.FASTER: f"Steps behind the window are faster: {medians}. A window cannot do that: something else "
        "slowed the steps before it, such as start-up; the step time is over both.",
        Verdict.DRIFT: f"Step times differ on both sides of the window: {medians}. They drift, or the steps before it "
        "are too few to blame it; the step time is over both.",
    }
    return [texts[effect.verdict]] if effect.verdict in texts else []


def describe_unreached_windows(run: Run, steps: int) -> list[str]:
    """Say which windows training ended too early for, after so many steps, and which would have fitted."""
    recorded = {window.first_step for window in run.windows}
    notes = []
    for first, last in run.planned_windows:
        if first in recorded or first <= steps:
            continue
        if steps < _FEWEST_FOR_WINDOW:
            advice = "a window needs two steps at least: train for more"
        else:
            until = max(steps - 1, _FEWEST_FOR_WINDOW)
            fitting = format_ranges(range(max(until - (last - first), _FEWEST_FOR_WINDOW), until + 1))
            advice = f"`--steps {fitting}` would fit"
        window = format_ranges(range(first, last + 1))
        notes.append(f"Window {window} was not reached: training ended after step {steps}; {advice}.")
    return notes


def _on_validation(tables: Sequence[Steps]) -> list[str]:
    """How many steps held a validation, which is not in their time."""
    held = max(int(present(table.no_grad_ns).sum()) for table in tables)
    if not held:
        return []
    total_s = max(int(table.no_grad_ns.sum()) for table in tables if table.no_grad_ns.count()) / NS_PER_S
    return [
        f"Validation or generation ran for {total_s:.2f} s in {format_count(held, 'step')}: it is not in the steps' "
        "times, and these steps are not in the step time."
    ]


def _on_windows(run: Run) -> list[str]:
    """What each profiler window cost, and the windows that a killed process took with it."""
    notes = []
    for first, last in sorted({(window.first_step, window.last_step) for window in run.windows}):
        windows = [window for window in run.windows if (window.first_step, window.last_step) == (first, last)]
        slowest = max(windows, key=lambda window: window.start_ns + window.stop_ns + window.export_ns)
        stalls_ns = {"start": slowest.start_ns, "stop": slowest.stop_ns, "export": slowest.export_ns}
        parts = ", ".join(f"{name} {stall_ns / NS_PER_MS:.0f} ms" for name, stall_ns in stalls_ns.items())
        kind = "Light window" if slowest.activities == LIGHT else "Window"
        notes.append(
            f"{kind} {format_ranges(range(first, last + 1))} stalled training for "
            f"{sum(stalls_ns.values()) / NS_PER_MS:.0f} ms (excluded from step times): {parts}."
        )
    unfinished = {table.rank for table in run.steps if len(table) and table.window[-1] in ("warmup", "profiled")}
    lost = sorted(unfinished - {window.rank for window in run.windows if window.partial})
    if lost:
        notes.append(f"Ranks {lost} ended while a window was open: that window is lost, earlier ones are complete.")
    return notes


def _on_saves(undisturbed: UndisturbedSteps) -> list[str]:
    """How checkpoint saves affected steps."""
    tables = undisturbed.tables
    notes = []
    stalled_s = times_without_stall_s(tables)
    if len(stalled_s):
        time = f" (median without the stall: {(median(stalled_s) or 0) * MS_PER_S:.2f} ms)"
        notes.append(
            f"Checkpoint saves stalled training in {format_count(len(stalled_s), 'step')}{time}; excluded from the "
            "step time, and so are steps in which a rank waited for the save of another one."
        )
    beside = max(int(steps_beside_save(table).sum()) for table in tables)
    if beside:
        time = _median_text(tables, steps_beside_save)
        included = any((undisturbed.mask(table) & table.draining).any() for table in tables)
        notes.append(
            f"An asynchronous save was writing during {beside} further steps{time}; they are "
            f"{'included, because hardly any step is without one' if included else 'excluded'}."
        )
    return notes


def _median_text(tables: Sequence[Steps], selection: Selection) -> str:
    median_s = median(job_times_s(tables, selection))
    return "" if median_s is None else f" (median: {median_s * MS_PER_S:.2f} ms)"
