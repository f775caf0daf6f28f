"""The view of a running job for terminals."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from perfscope.constants import GB, KILO, NS_PER_S
from perfscope.report import MOST_ROWS, escape_control_characters, in_unit
from perfscope.sources.runs.nvml import GpuValues
from perfscope.tables.steps import FEWEST_STEPS
from perfscope.units import format_ranges, format_seconds
from perfscope.watching.job import WatchedJob, WatchedRank


def draw(job: WatchedJob) -> Group:
    """One frame: the job in a few lines, its ranks, its GPUs."""
    parts: list[RenderableType] = [Text(line, style=style) for line, style in _headlines(job)]
    ranks = list(job.ranks.values())
    cells = [_rank_cells(job, rank) for rank in ranks[:MOST_ROWS]]
    parts.append(_draw_table("Rank,Host,Step,Step time,Data wait,Last step", cells, len(ranks), "ranks"))
    if job.gpus:
        cells = [_gpu_cells(values) for values in job.gpus[:MOST_ROWS]]
        parts.append(_draw_table("GPU,Host,Name,Busy,Memory,Power,Clock,Temp.", cells, len(job.gpus), "GPUs"))
    return Group(*parts)


def print_once(job: WatchedJob) -> str:
    """One frame as plain text."""
    console = Console(width=100, color_system=None, highlight=False, force_terminal=False)
    with console.capture() as capture:
        console.print(draw(job))
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def _headlines(job: WatchedJob) -> list[tuple[str, str]]:
    ranks = list(job.ranks.values())
    running = sum(not rank.has_ended for rank in ranks)
    world_size = max((rank.record.world_size for rank in ranks), default=0)
    state = f"the command {job.exit_status}" if job.exit_status else f"{running} of {world_size} ranks run"
    lines = [(f"{escape_control_characters(str(job.path))}: {state}", "bold")]
    step_ns = job.step_ns()
    steps = max((rank.step for rank in ranks), default=0)
    rates = [f"step {steps:,}"]
    if step_ns:
        rates.append(f"{format_seconds(step_ns / NS_PER_S)} a step")
    elif steps:
        rates.append(f"no step time: fewer than {FEWEST_STEPS} undisturbed steps")
    for count in ("samples", "tokens"):
        rate = job.per_second(count)
        rates += [f"{rate:,.0f} {count}/s"] if rate is not None else []
    rates.append(f"MFU {100 * job.mfu:.1f} %" if job.mfu is not None else f"MFU n/a ({job.mfu_reason})")
    lines.append((", ".join(rates), ""))
    missing = job.missing_ranks
    if missing and not job.exit_status:
        lines.append((f"no sign of {_ranks(missing)} yet", "yellow"))
    stalled = [rank.rank for rank in ranks if job.is_stalled(rank)]
    if stalled:
        idle_s = max(rank.age_ns(job.wall_ns) or 0 for rank in ranks) / NS_PER_S
        text = f"{_ranks(stalled)} finish no step for {idle_s:.0f} s: perfscope postmortem {job.path}"
        lines.append((text, "bold red"))
    return lines


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {format_ranges(ranks)}"


def _draw_table(headings: str, rows: Sequence[Sequence[str]], count: int, noun: str) -> Table:
    """The first rows of a table, and how many there are besides."""
    table = Table(box=None, pad_edge=False)
    for heading in headings.split(","):
        table.add_column(heading, justify="left" if heading in ("Host", "Name") else "right")
    for row in rows:
        table.add_row(*row)
    if count > len(rows):
        table.add_row("", f"{count - len(rows)} more {noun}")
    return table


def _rank_cells(job: WatchedJob, rank: WatchedRank) -> tuple[str, ...]:
    waits = [step.data_wait_ns for step in rank.steps if step.data_wait_ns is not None]
    age_ns = rank.age_ns(job.wall_ns)
    last = "ended" if rank.has_ended else "n/a" if age_ns is None else f"{age_ns / NS_PER_S:.0f} s ago"
    return (
        str(rank.rank),
        escape_control_characters(rank.record.host),
        f"{rank.step:,}",
        _time(job.step_ns(rank.rank)),
        _time(sorted(waits)[len(waits) // 2] if waits else None),
        last,
    )


def _gpu_cells(values: GpuValues) -> tuple[str, ...]:
    return (
        _text(values.index, "{}"),
        escape_control_characters(values.host),
        escape_control_characters(values.name),
        _text(values.gpu_util_percent, "{} %"),
        _text(in_unit(values.memory_used_bytes, GB), "{:.1f} GB"),
        _text(in_unit(values.power_mw, KILO), "{:.0f} W"),
        _text(values.sm_clock_mhz, "{} MHz"),
        _text(values.temperature_c, "{} C"),
    )


def _time(time_ns: float | None) -> str:
    return "n/a" if time_ns is None else format_seconds(time_ns / NS_PER_S)


def _text(value: float | None, pattern: str) -> str:
    return "n/a" if value is None else pattern.format(value)
