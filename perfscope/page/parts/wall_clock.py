"""Where the wall time of each process went: the steps that train, and everything else."""

from __future__ import annotations

from perfscope.analyzers.shared.parts import Part as Spent
from perfscope.analyzers.wall_clock import Ledger, WallClock
from perfscope.charts.grammar import Categories, Chart, Values
from perfscope.charts.palette import Colour
from perfscope.constants import NS_PER_S
from perfscope.engine.run import Analysis
from perfscope.page.part import Figure, Part, rank_name, result_of, why_absent
from perfscope.page.parts.stacked import stack_marks
from perfscope.page.selection import fit_row_height, select_rows
from perfscope.report import Cell, Column, Section, percent_of

_IDENTITY, _TITLE = "goodput", "Goodput"
_MOST_ROWS = 48
_TRAINING = "training steps"
_KINDS: tuple[tuple[str, Colour, tuple[Spent, ...]], ...] = (
    (_TRAINING, Colour.COMPUTE, (Spent.STEPS,)),
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


def show_wall_clock(analysis: Analysis) -> Part:
    """A bar for each process, from its start to its end."""
    clock = result_of(analysis, "wall_clock", WallClock)
    if clock is None:
        return Part(_IDENTITY, _TITLE, absent=why_absent(analysis, "wall_clock"))
    ledgers = clock.ledgers
    selection = select_rows([float(ledger.wall_ns) for ledger in ledgers], _MOST_ROWS, "wall time")
    shown = [ledgers[row] for row in selection.rows]
    whole_ns = sum(ledger.wall_ns for ledger in ledgers)
    steps_ns = sum(ledger.parts.get(Spent.STEPS, 0) for ledger in ledgers)
    lead = (
        f"{percent_of(steps_ns, whole_ns) or 0:.1f} % of the wall time of all processes went to training steps that "
        "nothing else was in; the parts of each add up to its life. `perfscope goodput` adds up the starts of a job. "
    )
    return Part(_IDENTITY, _TITLE, (lead + selection.note).strip(), (Figure((_chart(shown),), _table(ledgers)),))


def _name(ledger: Ledger) -> str:
    return rank_name(ledger.rank) + (f", start {ledger.attempt + 1}" if ledger.attempt else "")


def _times_s(ledger: Ledger) -> list[float]:
    return [sum(ledger.parts.get(part, 0) for part in parts) / NS_PER_S for _, _, parts in _KINDS]


def _chart(ledgers: list[Ledger]) -> Chart:
    names = tuple(map(_name, ledgers))
    kinds = [(label, colour) for label, colour, _ in _KINDS]
    return Chart(
        "Wall time by process",
        f"What the wall time of {len(ledgers)} processes went to, in seconds.",
        Values("s", low=0),
        Categories("", names),
        stack_marks(names, [_times_s(ledger) for ledger in ledgers], kinds, "s"),
        row_height=fit_row_height(len(ledgers)),
    )


def _table(ledgers: tuple[Ledger, ...]) -> Section:
    columns = (
        Column("Process"),
        *(Column(f"{label.capitalize()} (s)", 3) for label, _, _ in _KINDS),
        Column("All (s)", 3),
    )
    rows: list[tuple[Cell, ...]] = [(_name(ledger), *_times_s(ledger), ledger.wall_ns / NS_PER_S) for ledger in ledgers]
    return Section("Wall time by process", columns, tuple(rows))
