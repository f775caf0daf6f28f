"""The parts of a page that are bars: a function a result gives the lead and the figures above its tables."""

from __future__ import annotations

from perfscope.analyzers.breakdown import Breakdown
from perfscope.analyzers.gpus import Gpus
from perfscope.analyzers.host import HostTime
from perfscope.analyzers.loop import Loop
from perfscope.analyzers.memory import MemoryUse, chart_memory
from perfscope.analyzers.pipeline_bubble.measurement import PipelineBubble
from perfscope.analyzers.stacks import Stacks
from perfscope.analyzers.steps import StepTimes
from perfscope.analyzers.stragglers.records import LateRanks
from perfscope.analyzers.wall_clock import WallClock
from perfscope.charts.grammar import Categories, Chart, RowSpan, RowSpans, Values
from perfscope.charts.palette import Colour
from perfscope.constants import GB, NS_PER_MS, NS_PER_S
from perfscope.engine.run import Analysis
from perfscope.measures.parts import HostPart
from perfscope.measures.parts import LifePart as Spent
from perfscope.page.part import MOST_DRAWN, Drawn, PageFigure, draw_bars, draw_selected, rank_name, result_of
from perfscope.report import Cell, Column, Section, percent, percent_of
from perfscope.schedules.drawing import to_charts

_DEVICE = (
    ("compute", Colour.COMPUTE),
    ("exposed communication", Colour.COMMUNICATION),
    ("exposed copies", Colour.COPY),
    ("idle", Colour.IDLE),
)


def draw_breakdown(analysis: Analysis) -> Drawn:
    """A stacked bar for each rank and step."""
    breakdown = result_of(analysis, "breakdown", Breakdown)
    assert breakdown is not None
    bars = []
    for rank in breakdown.ranks:
        if len(breakdown.ranks) <= MOST_DRAWN and rank.steps:
            bars += [(_step_name(rank.rank, step.name), step.parts) for step in rank.steps]
        else:
            bars.append((rank_name(rank.rank), rank.row))
    rows = [
        (name, _in_ms(parts.compute, parts.exposed_communication, parts.exposed_copy, parts.idle))
        for name, parts in bars
    ]
    idle = [parts.idle for _, parts in bars]
    figure, note = draw_selected("Device time by rank and step", "ms", rows, _DEVICE, "idle time", idle)
    lead = "What each device did, exactly: compute hides communication, and both hide copies; the parts add up to the "
    return Drawn(f"{lead}window. {note}", (figure,))


def _step_name(rank: int | None, step: str) -> str:
    return f"{rank_name(rank)} · step {step.rpartition('#')[2]}"


def _in_ms(*times_ns: int) -> list[float]:
    return [time_ns / NS_PER_MS for time_ns in times_ns]


_HOST = (
    ("compute", Colour.COMPUTE),
    ("exposed communication", Colour.COMMUNICATION),
    ("data loading", Colour.DATA),
    ("outside of operators", Colour.PAUSE),
)


#: How the names of a kind of frames begin, and their colour.
_FRAMES = {
    "built-in functions": ("built-in ", Colour.CALL),
    "modules": ("nn.Module: ", Colour.BESIDE),
    "Python functions": ("", Colour.FIRST),
}


def draw_host(analysis: Analysis) -> Drawn:
    """A stacked bar for each rank and step of a run without a GPU."""
    host = result_of(analysis, "host", HostTime)
    assert host is not None
    steps = [(_step_name(rank.rank, step.name), step.parts) for rank in host.ranks for step in rank.steps]
    bars = steps or [(rank_name(rank.rank), rank.total) for rank in host.ranks]
    rows = [
        (name, _in_ms(parts.compute, parts.exposed_communication, parts.exposed_data_loading, parts.other))
        for name, parts in bars
    ]
    others = [parts.other for _, parts in bars]
    figure, note = draw_selected("Host time by rank and step", "ms", rows, _HOST, "time outside of operators", others)
    return Drawn(f"What the hosts did in the profiled steps, from the operators in the traces. {note}", (figure,))


def draw_stacks(analysis: Analysis) -> Drawn:
    """A flame graph of the slowest rank, or the first one: each function below its caller, as wide as it took long."""
    stacks, loop = result_of(analysis, "stacks", Stacks), result_of(analysis, "loop", Loop)
    assert stacks is not None
    rank = next((rank for rank in stacks.ranks if loop is not None and rank.rank == loop.rank), stacks.ranks[0])
    spans: dict[str, list[RowSpan]] = {kind: [] for kind in _FRAMES}
    begins = [0.0]
    shown = [frame for frame in rank.frames if frame.depth < MOST_DRAWN]
    for frame in shown:
        begins, time_ms = begins[: frame.depth + 1], frame.duration_ns / NS_PER_MS
        start = begins[-1]
        begins[-1] += time_ms
        begins.append(start)
        kind = next(kind for kind, (prefix, _) in _FRAMES.items() if frame.name.startswith(prefix))
        tip = f"{frame.name}: {time_ms:,.2f} ms, {percent_of(frame.duration_ns, rank.window_ns):.1f} %"
        spans[kind].append(RowSpan(frame.depth, start, start + time_ms, tip, frame.name.rpartition(" ")[2]))
    depth = 1 + max(frame.depth for frame in shown)
    chart = Chart(
        f"Python functions of the profiled steps, {rank_name(rank.rank)}",
        f"A flame graph of {len(shown)} functions of the training thread, each below its caller.",
        Values("ms", low=0, high=rank.window_ns / NS_PER_MS),
        Categories(("",) * depth),
        tuple(RowSpans(kind, _FRAMES[kind][1], tuple(of_kind)) for kind, of_kind in spans.items() if of_kind),
    )
    columns = (Column("Function"), Column("Depth"), Column("Time (ms)", 2))
    rows = tuple((frame.name, frame.depth, frame.duration_ns / NS_PER_MS) for frame in rank.frames)
    lead = "What the training thread was in, in the profiled steps."
    return Drawn(lead, (PageFigure((chart,), Section(chart.title, columns, rows)),))


_LATE = {
    HostPart.COMPUTE: Colour.COMPUTE,
    HostPart.EXCHANGE: Colour.COMMUNICATION,
    HostPart.DATA: Colour.DATA,
    HostPart.NO_PROCESSOR: Colour.OPERATOR,
    HostPart.KERNEL: Colour.CALL,
    HostPart.GARBAGE: Colour.BACKWARD,
    HostPart.BLOCKED: Colour.WORSE,
    HostPart.SAVE: Colour.SYNCHRONISATION,
    HostPart.COMPILATION: Colour.BESIDE,
}


def draw_late_ranks(late: LateRanks) -> Drawn:
    """The answer in a sentence, and a bar for each rank: what its host did in a mean step."""
    ranks, steps = late.ranks, late.compared_steps
    if not steps:
        return Drawn(f"{late.in_a_sentence()}. ")
    own_ns = [rank.total_ns - rank.parts_ns[HostPart.EXCHANGE] for rank in ranks]
    parts = [part for part in _LATE if any(rank.parts_ns[part] for rank in ranks)]
    rows = [(rank_name(rank.rank), [rank.parts_ns[part] / steps / NS_PER_MS for part in parts]) for rank in ranks]
    kinds = [(part.label.lower(), _LATE[part]) for part in parts]
    figure, note = draw_selected("Mean step on the host, by rank", "ms", rows, kinds, "time of their own", own_ns)
    return Drawn(f"{late.in_a_sentence()}. {note}", (figure,))


_LIFE: tuple[tuple[str, Colour, tuple[Spent, ...]], ...] = (
    ("training steps", Colour.COMPUTE, (Spent.STEPS,)),
    ("waiting for data", Colour.DATA, (Spent.DATA_WAIT,)),
    (
        "start-up and first step",
        Colour.OPERATOR,
        (Spent.IMPORTS, Spent.SET_UP, Spent.BEFORE_FIRST_STEP, Spent.FIRST_STEP),
    ),
    ("compilation", Colour.BESIDE, (Spent.COMPILATION,)),
    ("checkpoint saves", Colour.SYNCHRONISATION, (Spent.SAVES,)),
    ("validation and generation", Colour.BACKWARD, (Spent.VALIDATION, Spent.VALIDATION_WAIT, Spent.GENERATION)),
    (
        "profiler windows and hooks",
        Colour.COPY,
        (Spent.WINDOW_STEPS, Spent.WINDOW_START, Spent.WINDOW_STOP, Spent.WINDOW_EXPORT, Spent.HOOKS),
    ),
    ("between steps and after the last one", Colour.IDLE, (Spent.BETWEEN, Spent.END)),
)


def draw_wall_clock(analysis: Analysis) -> Drawn:
    """A bar for each process, from its start to its end."""
    clock = result_of(analysis, "wall_clock", WallClock)
    assert clock is not None
    ledgers = clock.ledgers
    names = [rank_name(each.rank) + (f", start {each.attempt + 1}" if each.attempt else "") for each in ledgers]
    rows = [[sum(each.parts.get(part, 0) for part in parts) / NS_PER_S for _, _, parts in _LIFE] for each in ledgers]
    wall_ns = [ledger.wall_ns for ledger in ledgers]
    kinds = [(label, colour) for label, colour, _ in _LIFE]
    bars = list(zip(names, rows, strict=True))
    figure, note = draw_selected("Wall time by process", "s", bars, kinds, "wall time", wall_ns)
    steps_ns = sum(ledger.parts.get(Spent.STEPS, 0) for ledger in ledgers)
    share = percent_of(steps_ns, sum(wall_ns)) or 0
    lead = (
        f"{share:.1f} % of the wall time of all processes went to training steps that "
        "nothing else was in; the parts of each add up to its life. `perfscope analyze --only goodput` adds up the "
        f"starts of a job. {note}"
    )
    return Drawn(lead, (figure,))


_LIFE_COLOURS = {part: colour for _, colour, parts in _LIFE for part in parts}


def draw_loop(loop: Loop) -> tuple[PageFigure, ...]:
    """A bar of the whole training loop, and one for each line where the training thread was seen."""
    parts = [(row.part.label, _LIFE_COLOURS[row.part]) for row in loop.parts]
    times = [[row.s for row in loop.parts]]
    figures = (draw_bars("Time of the training loop", "s", [rank_name(loop.rank)], times, parts),)
    seen: dict[str, float] = {}
    for line in (line for line in loop.lines if line.rank == loop.rank):
        seen[line.place] = seen.get(line.place, 0.0) + line.share
    if not seen:
        return figures
    rows = [[percent(share)] for share in list(seen.values())[:MOST_DRAWN]]
    kinds = (("of the looks into usual steps", Colour.FIRST),)
    return (*figures, draw_bars("Lines of the training thread", "%", list(seen)[:MOST_DRAWN], rows, kinds))


_MEMORY = (
    ("tensors", Colour.COMPUTE),
    ("other use: caches, contexts, NCCL, other processes", Colour.COPY),
    ("never used", Colour.IDLE),
)


def draw_memory(analysis: Analysis) -> Drawn:
    """A bar for each rank: tensors, everything else in use, and what is free, at their maximum; and a history."""
    steps, gpus = result_of(analysis, "steps", StepTimes), result_of(analysis, "gpus", Gpus)
    use = result_of(analysis, "memory", MemoryUse)
    over_time = () if use is None else (_draw_history(use),)
    peaks = {rank.rank: rank.memory_peak_bytes for rank in steps.ranks} if steps else {}
    of_gpu = {gpu.ranks[0]: gpu for gpu in gpus.gpus if len(gpu.ranks) == 1} if gpus else {}
    bars: list[tuple[str, tuple[float | None, ...]]] = []
    for rank in sorted({rank for rank, peak in peaks.items() if peak} | set(of_gpu)):
        gpu, peak = of_gpu.get(rank), (peaks.get(rank) or 0) / GB
        used = (gpu.memory_used_bytes or 0) / GB if gpu else 0.0
        whole = (gpu.memory_total_bytes or 0) / GB if gpu else 0.0
        if peak or used:
            rest, free = max(used - peak, 0.0), max(whole - max(used, peak), 0.0)
            bars.append((rank_name(rank), (peak or None, rest if used else None, free if whole else None)))
    if not bars and over_time:
        return Drawn("What tensors held over the window, by what they are for.", over_time)
    if not bars:
        return Drawn(absent="no rank recorded the memory of its device, and NVML was not sampled on it")
    in_use = [sum(part or 0.0 for part in parts[:2]) for _, parts in bars]
    figure, note = draw_selected("Peak memory by rank", "GB", bars, _MEMORY, "memory in use", in_use)
    lead = "The most that each rank's device held: tensors by torch's allocator, all use by NVML. GB is 10^9 bytes. "
    return Drawn(lead + note, (figure, *over_time))


def _draw_history(use: MemoryUse) -> PageFigure:
    """What the fullest device held over its window, by category, and its peak in figures."""
    peak = use.fullest_device
    cells: list[tuple[Cell, ...]] = [
        (part.name, part.bytes / GB, percent_of(part.bytes, peak.peak_bytes)) for part in peak.categories if part.bytes
    ]
    columns = (Column("Category"), Column("At the peak (GB)", 3), Column("Share (%)"))
    return PageFigure((chart_memory(peak),), Section("Peak by category", columns, tuple(cells)))


def draw_pipeline(analysis: Analysis) -> Drawn:
    """A typical step of each pipeline, measured and ideal, on one scale."""
    bubbles = result_of(analysis, "pipeline_bubble", PipelineBubble)
    if bubbles is None:
        return Drawn("Nothing to draw: traces of all stages are needed. The times below are those of the hosts.")
    charts = bubbles.charts
    lead = "Passes of micro-batches by stage, in a typical step: what is empty is bubble."
    if len(charts) == 1:
        lead += " There is no ideal beside it, because the schedule was not recognised."
    columns = (Column("Schedule"), Column("Stage"), Column("Passes"), Column("Busy (ms)", 3), Column("Step (ms)", 3))
    rows: list[tuple[Cell, ...]] = []
    for chart in charts:
        for lane in chart.lanes:
            busy_ms = sum(bar.end - bar.start for bar in lane.bars) / NS_PER_MS
            rows.append((chart.title, lane.label, len(lane.bars), busy_ms, chart.end / NS_PER_MS))
    figure = PageFigure(to_charts(charts, NS_PER_MS, "ms"), Section("Passes by stage", columns, tuple(rows)))
    return Drawn(lead, (figure,))
