"""Rows of published tables as the points of a scaling study: GPUs, and a throughput or a step time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from perfscope.sources.published.tables import read_published
from perfscope.tables.published import PublishedRow, PublishedTable, Quantity
from perfscope.tables.scaling import ClusterSize, ScalingRun

_TABLES = (".csv", ".md")
_SETUP = (Quantity.PARAMETERS, Quantity.MICRO_BATCH)
_RATES = (Quantity.TOKEN_RATE, Quantity.RATE)  # the one with more digits first
_READ = (
    Quantity.GPUS,
    Quantity.NODES,
    Quantity.GPUS_PER_NODE,
    Quantity.GLOBAL_BATCH,
    Quantity.SEQ_LEN,
    Quantity.STEP_TIME,
)


def is_table(path: Path) -> bool:
    """Whether a file may have tables, by its name."""
    return path.suffix.lower() in _TABLES and path.is_file()


def read_points(path: Path) -> tuple[list[ScalingRun], list[str]]:
    """The rows that state their GPUs and a throughput, of every table that does so, and why others are none.

    ``model`` is the title of the table, and the cells that tell its series apart.
    """
    tables = read_published(path, {}, added=(Quantity.EFFICIENCY,)).tables
    found = [point for table in tables for point in _list_points(path, table)]
    return [point for point in found if not isinstance(point, str)], [
        point for point in found if isinstance(point, str)
    ]


def _list_points(path: Path, table: PublishedTable) -> Iterator[ScalingRun | str]:
    if not {*_RATES, Quantity.STEP_TIME} & table.columns.keys():
        return
    if Quantity.GPUS not in table.columns:
        yield from (f"{path}:{table.line}: {note}" for note in table.notes)
    naming = [index for index in range(len(table.headings)) if _tells_series_apart(table, index)]
    for row in table.rows:
        gpus, nodes, per_node, batch, length, time_s = (_number(row, quantity) for quantity in _READ)
        if gpus is None and nodes and per_node:
            gpus = nodes * per_node
        if gpus is None:
            if Quantity.GPUS in row.problems:
                yield f"{path}:{row.line}: {row.problems[Quantity.GPUS]}"
            continue
        quantity = next((quantity for quantity in _RATES if quantity in row.figures), _RATES[-1])
        speed, notes = _number(row, quantity), [row.problems[rate] for rate in _RATES if rate in row.problems]
        if speed is None and time_s:
            speed = batch / time_s if batch else None
            notes.append("a step time gives no throughput without the global batch")
        yield ScalingRun(
            path=f"{path}:{row.line}",
            cluster=ClusterSize(int(gpus), int(nodes) if nodes and gpus % nodes == 0 else None),
            model=", ".join(dict.fromkeys((table.title, *(_name(table, row, index) for index in naming)))),
            batch=None if batch is None else int(batch),
            seq_len=None if length is None else int(length),
            samples_per_s=speed,
            notes=tuple(notes) if speed is None else (),
            unit=str(quantity),
        )


def _number(row: PublishedRow, quantity: Quantity) -> float | None:
    figure = row.figures.get(quantity)
    return None if figure is None else float(figure.number)


def _name(table: PublishedTable, row: PublishedRow, index: int) -> str:
    cell = row.cells[index] if index < len(row.cells) else ""
    return f"{table.headings[index]} {cell}" if cell[:1].isdigit() else cell


def _tells_series_apart(table: PublishedTable, index: int) -> bool:
    """A column of the set-up, or of names, with several of them; of notes each is another one."""
    if len({row.cells[index] for row in table.rows if index < len(row.cells)}) == 1:
        return False
    stated = next((quantity for quantity, column in table.columns.items() if column == index), None)
    if stated is not None:
        return stated in _SETUP
    rows = [row for row in table.rows if index < len(row.numbers)]
    if all({row.cells[index], _digits(row, index)} & {*row.group} for row in rows):
        return True
    names = [row.cells[index] for row in rows if row.cells[index] and row.numbers[index] is None]
    return len(set(names)) < len(names)


def _digits(row: PublishedRow, index: int) -> str:
    figure = row.numbers[index]
    return "" if figure is None else str(figure.number)
