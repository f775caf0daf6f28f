"""Device time of the modules of a model, by phase, as a tree: a bar for each module, those inside it below it."""

from __future__ import annotations

from collections.abc import Iterator

from perfscope.analyzers.modules.attribution import Phase
from perfscope.analyzers.modules.measurement import RankModules
from perfscope.analyzers.modules.result import ModuleTree
from perfscope.analyzers.modules.tree import ModuleNode, build_tree, fold
from perfscope.charts.grammar import Categories, Chart, Values
from perfscope.charts.palette import Colour
from perfscope.constants import NS_PER_MS
from perfscope.engine.run import Analysis
from perfscope.page.part import Figure, Part, rank_name, result_of, why_absent
from perfscope.page.parts.stacked import stack_marks
from perfscope.page.selection import fit_row_height
from perfscope.report import Cell, Column, Section

_IDENTITY, _TITLE = "modules", "Modules"
_MOST_ROWS = 24
_INDENT = "· "
_NOT_RECORDED = "Nothing to show: this is no run of `perfscope profile --modules`."
_PHASES = {
    Phase.FORWARD: ("forward", Colour.FORWARD),
    Phase.BACKWARD: ("backward", Colour.BACKWARD),
    Phase.RECOMPUTATION: ("recomputed", Colour.WEIGHT),
    Phase.OPTIMIZER: ("optimizer", Colour.BESIDE),
    Phase.COMMUNICATION: ("communication", Colour.COMMUNICATION),
}


def show_modules(analysis: Analysis) -> Part:
    """A bar for each module of the rank that computes longest."""
    tree = result_of(analysis, "modules", ModuleTree)
    if tree is None:
        is_tried = any(skip.analyzer == "modules" for skip in (*analysis.skipped, *analysis.inapplicable))
        return Part(_IDENTITY, _TITLE, absent=why_absent(analysis, "modules") if is_tried else _NOT_RECORDED)
    rank = max(tree.traced, key=lambda each: each.computing_ns / max(1, each.steps))
    nodes = list(_walk(rank, tree.depth))
    if not nodes:
        return Part(_IDENTITY, _TITLE, "No module has device time.", sections=tree.sections())
    shown = nodes[:_MOST_ROWS]
    of_step = f"a mean of {rank.steps} steps" if rank.steps else "the whole trace, which marks no step"
    lead = f"Device time of each module with those inside it, of {of_step} of {rank_name(rank.rank)}."
    if len(shown) < len(nodes):
        lead += f" {len(shown)} of {len(nodes)} are drawn, from the outermost in."
    figure = Figure((_chart(shown, max(1, rank.steps)),), _table(nodes, max(1, rank.steps)))
    return Part(_IDENTITY, _TITLE, lead, (figure,), tree.sections())


def _walk(rank: RankModules, most_levels: int) -> Iterator[tuple[str, ModuleNode]]:
    """The name of each module, indented by its level, and the module; repeated layers are one."""
    for root in sorted(fold(build_tree(rank.modules)), key=lambda node: -node.total_ns):
        for level, node in root.walk():
            if level < most_levels and node.total_ns:
                repeated = f" x{len(node.instances_ns)}" if len(node.instances_ns) > 1 else ""
                yield f"{_INDENT * level}{node.path}{repeated}", node


def _times_ms(node: ModuleNode, steps: int) -> list[float]:
    totals = node.totals_ns()
    return [totals[phase] / steps / NS_PER_MS for phase in _PHASES]


def _chart(nodes: list[tuple[str, ModuleNode]], steps: int) -> Chart:
    paths = [node.path for _, node in nodes]
    marks = stack_marks(paths, [_times_ms(node, steps) for _, node in nodes], list(_PHASES.values()), "ms")
    return Chart(
        "Device time by module",
        f"Time of {len(nodes)} modules by phase, in milliseconds; a module includes those inside it.",
        Values("ms", low=0),
        Categories("", tuple(name for name, _ in nodes)),
        marks,
        row_height=fit_row_height(len(nodes)),
    )


def _table(nodes: list[tuple[str, ModuleNode]], steps: int) -> Section:
    columns = (
        Column("Module"),
        *(Column(f"{label.capitalize()} (ms)", 3) for label, _ in _PHASES.values()),
        Column("All (ms)", 3),
    )
    rows: list[tuple[Cell, ...]] = [
        (node.path, *_times_ms(node, steps), node.total_ns / steps / NS_PER_MS) for _, node in nodes
    ]
    return Section("Device time by module", columns, tuple(rows))
