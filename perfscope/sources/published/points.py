"""Rows of published tables as the points of a scaling study: GPUs, and a throughput or a step time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from perfscope.sources.published.tables import read_published
from perfscope.tables.published import PublishedRow, PublishedTable, Quantity
from perfscope.tables.scaling import ClusterSize, ScalingRun

_TABLES = (".csv", ".md")
_SETUP = (Quantity.PARAMETERS, Quantity.LAYERS, Quantity.MICRO_BATCH)
#: The one with more digits first.
_RATES = (Quantity.TOKEN_RATE, Quantity.DEVICE_TOKEN_RATE, Quantity.RATE)
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
    titles = Counter(table.title for table in tables)
    runs: list[ScalingRun] = []
    problems: list[str] = []
    for table in tables:
        title = table.title if titles[table.title] == 1 else f"{table.title} (line {table.line})"
        for point in _list_points(path, table, title):
            if isinstance(point, str):
                problems.append(point)
            else:
                runs.append(point)
    return runs, problems


def _list_points(path: Path, table: PublishedTable, title: str) -> Iterator[ScalingRun | str]:
    if not {*_RATES, Quantity.STEP_TIME} & table.columns.keys():
        return
    naming = [index for index in range(len(table.headings)) if _tells_series_apart(table, index)]
    for row in table.rows:
        gpus, nodes, per_node, batch, length, time_s = (_number(table, row, quantity) for quantity in _READ)
        if gpus is None and nodes and per_node:
            gpus = nodes * per_node
        if gpus is None:
            if Quantity.GPUS in row.problems:
                yield f"{path}:{row.line}: {row.problems[Quantity.GPUS]}"
            continue
        stated = next((quantity for quantity in _RATES if quantity in row.figures), Quantity.RATE)
        speed, notes = _number(table, row, stated), [row.problems[rate] for rate in _RATES if rate in row.problems]
        if speed is not None and stated is Quantity.DEVICE_TOKEN_RATE:
            speed, stated = speed * gpus, Quantity.TOKEN_RATE
        elif speed is None and time_s:
            speed = batch / time_s if batch else None
            notes.append("a step time gives no throughput without the global batch")
        names = [title, *(_name(table, row, index) for index in naming), *(["second values"] if row.is_second else [])]
        dtype = row.subject.dtype
        yield ScalingRun(
            path=f"{path}:{row.line}",
            cluster=ClusterSize(int(gpus), int(nodes) if nodes and gpus % nodes == 0 else None),
            model=", ".join(dict.fromkeys(name for name in names if name and name.lower() != dtype)),
            batch=None if batch is None else int(batch),
            samples_per_s=speed,
            precision=dtype,
            seq_len=None if length is None else int(length),
            notes=tuple(notes) if speed is None else (),
            unit=str(stated),
        )


def _number(table: PublishedTable, row: PublishedRow, quantity: Quantity) -> float | None:
    """The figure of the row, else what the text around the table states."""
    if quantity in row.figures:
        return float(row.figures[quantity].number)
    constant = table.constants.get(quantity)
    return None if constant is None or constant.is_assumed or quantity in table.columns else float(constant.value)


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
    names = [row.cells[index] for row in rows if row.cells[index]]
    return not any(row.numbers[index] for row in rows) and len(set(names)) < len(names)


def _digits(row: PublishedRow, index: int) -> str:
    figure = row.numbers[index]
    return "" if figure is None else str(figure.number)
