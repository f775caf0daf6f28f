"""Markdown and CSV files as published tables: the quantity of every column, and the figures of every row.

Headings are matched as people write them: ``Glob-BS``, ``GBS`` and ``global batch size`` are one quantity. If a heading
names no unit ("Speed"), the cells decide whether it is a time or a rate. Columns of names say what the row is about.

A table whose first column holds such headings is read by its columns. A cell ``899 (738)`` states two values: its row
is read twice.

A text can state constants: ``Seq length is 1024``, ``BS=1024, SIZE=104B``. The nearest statement counts: above the
table, below it, under its heading, else under a heading above that; a sequence length also from anywhere else. Two
different values in one part of the text are ambiguous, and neither is used.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from perfscope.constants import GIGA, MEGA
from perfscope.errors import SourceError, UsageError
from perfscope.files import read_text
from perfscope.models.data_files import read_data
from perfscope.models.hardware import Gpu
from perfscope.models.parameter_counts import SAME_SIZE, active_parameters, total_parameters
from perfscope.sources.published.cells import (
    LARGEST_SHARE,
    leading_number,
    read_changes,
    read_figure,
    read_gpus,
    read_size,
    split_pair,
    without_footnotes,
)
from perfscope.sources.published.markdown import Cell, Grid, Heading, MarkdownDocument, outline, read_markdown
from perfscope.sources.published.subjects import GPU, MODEL, NAMING, Names, find_subject
from perfscope.tables.published import (
    DERIVED,
    Constant,
    PrintedFigure,
    PublishedRow,
    PublishedTable,
    Quantity,
    Subject,
    TextSpan,
)

_HEADINGS = {Quantity[name]: "|".join(patterns) for name, patterns in read_data("headings")["headings"].items()}
_UNITLESS_SPEED = re.compile(r"speed|through?t?put|thr?outhput|perf(ormance)?")
_RATE_UNIT = re.compile(r"(samples?|sequences?|seqs?|imgs?|images?|examples?|sentences?|it)\s*/\s*s(ec(ond)?)?")
_TOKEN_UNIT = re.compile(r"\b(tokens?|toks?|tks?|t)\s*/\s*s(ec(ond)?)?")
_PER_DEVICE = re.compile(r"(per|/) ?(gpu|device|rank|chip)")
# The words of a heading such as "Throughput (T/s/GPU)": tokens, a second, a device, and what may stand beside them.
_TOKEN_WORDS = {"tokens", "token", "toks", "tok", "tks", "t"}
_SECOND_WORDS = {"s", "sec", "second", "seconds"}
_DEVICE_WORDS = {"gpu", "gpus", "device", "chip", "rank"}
_RATE_WORDS = {"throughput", "training", "in", "per", "average", "mean"}
_TOKENS = ("t", "tokens")
_TIME_UNITS = ("ns", "us", "µs", "ms", "s", "sec", "seconds")
_SHARES = (Quantity.PEAK_FRACTION, Quantity.HARDWARE_FRACTION)
_STATED = re.compile(r"\b(?P<key>[A-Za-z]+)\s*=\s*(?P<number>\d{1,9})\b")
_STATED_GPUS = re.compile(r"(?P<number>\d{1,9})\s*[x\xd7]?\s*(?:[A-Z]+\d+\w*\s+)?GPUs?\b")
_ID_HEADINGS = ("id", "run", "case", "test case", "test num", "test", "name", "experiment")
_GROUP_HEADINGS = re.compile(
    r"dtype|precision|fp16|amp|framework|model|network|dataset|zero( stage)?|opt offl|par offl|xla|clip|batch.*|mbs|bsz"
    r"|mode|scaling"
)


@dataclass(frozen=True, slots=True)
class ColumnMeaning:
    """What a column states; the quantity is None for anything else.

    ``unit`` is in the parentheses of its heading, in lower case. Rows that differ in a group have no common baseline.
    ``names`` is what its texts name: a model, a GPU, a precision.
    """

    quantity: Quantity | None
    unit: str
    is_label: bool
    is_group: bool
    names: str | None = None


def describe_columns(headings: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[ColumnMeaning]:
    """Find what each column of a table states."""
    columns = [_describe_column(heading) for heading in headings]
    has_tflops = any(column.quantity is Quantity.TFLOPS for column in columns)
    for index, heading in enumerate(headings):
        is_speed = _UNITLESS_SPEED.fullmatch(_simplify(heading)[0]) and not _PER_DEVICE.search(columns[index].unit)
        if is_speed and columns[index].quantity is None:
            cells = [row[index].text for row in rows if index < len(row) and row[index].text]
            quantity = _decide_speed(cells, has_tflops=has_tflops)
            columns[index] = replace(columns[index], quantity=quantity)
        numbers = [leading_number(row[index]) for row in rows if index < len(row)]
        if columns[index].quantity in _SHARES and any(each and each.number > LARGEST_SHARE for each in numbers):
            columns[index] = replace(columns[index], unit=columns[index].unit + " %")
        sizes = [read_size(row[index], columns[index].unit) for row in rows if index < len(row)]
        if columns[index].quantity is Quantity.PARAMETERS and not any(sizes):
            columns[index] = replace(columns[index], quantity=None)  # "Model" is often a name
    stated = {index for index, column in enumerate(columns) if column.quantity is Quantity.PARAMETERS}
    loose = {index for index in stated if "param" not in headings[index].lower()}
    if loose == stated:
        loose = set()  # no heading names parameters
    kinds = {
        index
        for index, column in enumerate(columns)
        if column.quantity is Quantity.GPUS and _are_names([row[index] for row in rows if index < len(row)])
    }
    counts = [index for index, column in enumerate(columns) if column.quantity is Quantity.GPUS and index not in kinds]
    if len(counts) > 1:  # ``H100`` alone is one GPU; beside a column of numbers it is a kind
        kinds |= {index for index in counts if not any(re.match(r"\d", row[index].text) for row in rows if row[index:])}
    return [
        replace(column, quantity=None, is_group=True) if index in loose | kinds else column
        for index, column in enumerate(columns)
    ]


def _are_names(cells: Sequence[Cell]) -> bool:
    """Whether the cells name kinds of GPUs (``h100_80gb``), not a number of them."""
    return any(re.search(r"[A-Za-z]\d", cell.text) for cell in cells) and not any(read_gpus(cell) for cell in cells)


def _describe_column(heading: str) -> ColumnMeaning:
    plain, unit = _simplify(heading)
    names = next((name for name, pattern in NAMING.items() if pattern.fullmatch(plain)), None)
    quantity = _describe_quantity(plain, unit)
    return ColumnMeaning(quantity, unit, plain in _ID_HEADINGS, _GROUP_HEADINGS.fullmatch(plain) is not None, names)


def _describe_quantity(plain: str, unit: str) -> Quantity | None:
    words = set(re.findall(r"[a-z]+", re.sub(r"\btps\b", "tokens s", f"{plain} {unit}")))
    if words & _TOKEN_WORDS and words & _SECOND_WORDS:
        rest = words - _TOKEN_WORDS - _SECOND_WORDS - _RATE_WORDS
        if rest <= _DEVICE_WORDS:
            return Quantity.DEVICE_TOKEN_RATE if rest else Quantity.TOKEN_RATE
    if _PER_DEVICE.search(plain) and re.search(r"/ ?s|per s", plain) and "flop" not in plain:
        return None  # the rate of one device is not the rate of the job
    if re.search(r"(/|per) ?s(ec(ond)?)?\b", unit) and not _PER_DEVICE.search(unit) and _UNITLESS_SPEED.search(plain):
        return Quantity.TOKEN_RATE if _TOKEN_UNIT.search(unit) else Quantity.RATE
    if unit in _TIME_UNITS and _UNITLESS_SPEED.fullmatch(plain):
        return Quantity.STEP_TIME
    for quantity, pattern in _HEADINGS.items():
        if re.fullmatch(pattern, plain) and not (quantity is Quantity.GLOBAL_BATCH and unit in _TOKENS):
            return quantity
    return None


def _simplify(heading: str) -> tuple[str, str]:
    """A heading in lower case without markup, and the unit that it names in parentheses."""
    text = (
        re.sub(r"<[^>]*>", " ", _simplify_link(heading))
        .translate({ord(c): " " for c in "_-*`~"})
        .replace("\uff08", "(")
        .replace("\uff09", ")")
    )
    units = re.findall(r"\(([^()]*)\)", text)
    text = re.sub(r"\([^()]*\)", " ", text)
    return " ".join(text.lower().split()), " ".join(" ".join(units).lower().split())


def _simplify_link(text: str) -> str:
    return re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)


def _decide_speed(cells: Sequence[str], *, has_tflops: bool) -> Quantity:
    """The quantity of a speed without a unit: by the unit of its cells, else a time if there is a column of TFLOPs."""
    if any(_TOKEN_UNIT.search(cell) for cell in cells):
        return Quantity.TOKEN_RATE
    if any(_RATE_UNIT.search(cell) or re.search(r"\d\s*/\s*s\b", cell) for cell in cells):
        return Quantity.RATE
    if has_tflops or any(re.search(r"\d\s*(m?s|secs?|min)\b", cell) for cell in cells):
        return Quantity.STEP_TIME
    return Quantity.RATE


_STATEMENTS = {
    Quantity[name]: [re.compile(pattern) for pattern in patterns]
    for name, patterns in read_data("headings")["statements"].items()
}
# What a report rarely changes between its sections, unlike the parallel layout of a model.
_SAME_EVERYWHERE = (Quantity.SEQ_LEN, Quantity.PASSES)
_LARGEST = 10**15


class _Statement(NamedTuple):
    """One constant that the text states in a line; the rank of its pattern is 0 for the most trusted."""

    quantity: Quantity
    value: int
    line: int
    rank: int


def _find_statements(document: MarkdownDocument) -> list[_Statement]:
    """Every constant that the text outside of tables states."""
    inside = {line for grid in document.grids for line in range(grid.line, grid.last_line + 1)}
    statements = [
        _Statement(quantity, _value(quantity, match), number, rank)
        for number, line in enumerate(document.lines, 1)
        if number not in inside
        for quantity, patterns in _STATEMENTS.items()
        for rank, pattern in enumerate(patterns)
        for match in pattern.finditer(line)
    ]
    return [statement for statement in statements if 0 < statement.value < _LARGEST]


def _value(quantity: Quantity, match: re.Match[str]) -> int:
    if quantity is not Quantity.PARAMETERS:
        return int(match["value"])
    unit = (match.groupdict().get("unit") or "B").upper()
    return int(Decimal(match["value"]) * (GIGA if unit == "B" else MEGA))


def _select_constants(
    document: MarkdownDocument, grid: Grid, statements: Sequence[_Statement]
) -> tuple[dict[Quantity, Constant], dict[Quantity, str]]:
    """The constants of one table, and the problem with each that the text states with two values."""
    constants: dict[Quantity, Constant] = {}
    ambiguous: dict[Quantity, str] = {}
    for quantity in _STATEMENTS:
        of_quantity = [entry for entry in statements if entry.quantity is quantity]
        everywhere = [(1, len(document.lines))] if quantity in _SAME_EVERYWHERE else []
        for first, last in (*_scopes(document, grid), *everywhere):
            here = [entry for entry in of_quantity if first <= entry.line <= last]
            here = [entry for entry in here if entry.rank == min(each.rank for each in here)]
            if len({entry.value for entry in here}) > 1:
                values = ", ".join(f"{entry.value} (line {entry.line})" for entry in here)
                ambiguous[quantity] = f"the text states the {quantity} as {values}"
            elif here:
                constants[quantity] = Constant(here[-1].value, f"line {here[-1].line}")
            if here:
                break
    return constants, ambiguous


def _scopes(document: MarkdownDocument, grid: Grid) -> Iterator[tuple[int, int]]:
    """The ranges of lines whose statements apply to a table, from the nearest on.

    They are the text up to the table before and the one after it, the section, and the text under each heading above it
    in the outline. What a chapter says before its first section applies to all of its sections.
    """
    end = len(document.lines) + 1
    headings = [*document.headings, Heading(end, 0, "")]
    begin = max((heading.line for heading in headings if heading.line <= grid.line), default=1)
    close = next(heading.line for heading in headings if heading.line > grid.line)
    before = max((table.last_line + 1 for table in document.grids if table.last_line < grid.line), default=1)
    after = min((table.line for table in document.grids if table.line > grid.last_line), default=end)
    yield max(begin, before), grid.line
    yield grid.last_line, min(close, after) - 1
    for above in outline(document.headings, grid.line):
        yield above.line, next(heading.line for heading in headings if heading.line > above.line) - 1
    yield 1, headings[0].line - 1


_LABELS = (
    Quantity.GPUS,
    Quantity.NODES,
    Quantity.PARAMETERS,
    Quantity.MICRO_BATCH,
    Quantity.GLOBAL_BATCH,
    Quantity.STEP_TIME,
    Quantity.RATE,
)
_LABEL_CELLS = 4  # of a row without a column that names it
_ABSENT = {"", "-", "--", "\u2013", "—", "n/a", "na", "nan", "none", "tbd", "todo", "?", "oom", "fail", "failed"}
_ABSENT |= {"x", "xx", "xxx", "xxxx"}
_MEASURED = (Quantity.STEP_TIME, Quantity.RATE, Quantity.TOKEN_RATE, Quantity.DEVICE_TOKEN_RATE)
_TOTALS = {Quantity.GLOBAL_BATCH, Quantity.GPUS}
_FACTORS = {
    Quantity.MICRO_BATCH,
    Quantity.ACCUMULATION,
    Quantity.DATA_PARALLEL,
    Quantity.TENSOR_PARALLEL,
    Quantity.PIPELINE_PARALLEL,
}


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """The tables of a file that can be recomputed or checked, and in words those that cannot; CSV has no document."""

    path: str
    document: MarkdownDocument | None
    tables: tuple[PublishedTable, ...]
    unread: tuple[str, ...]


def read_published(
    path: Path, constants: Mapping[Quantity, Constant], added: Sequence[Quantity] = (), gpu: Gpu | None = None
) -> PublishedFile:
    """Read the tables of a markdown file, or the one of a CSV file.

    ``constants`` hold for every table, whatever its text states, and ``gpu`` for rows that name none. With derived
    quantities that will be ``added``, tables without a derived column are read, too.
    """
    if path.suffix.lower() == ".csv":
        table = read_table(_read_csv(path), constants, {}, gpu, required=bool(added))
        return PublishedFile(os.fspath(path), None, (table,) if table else (), ())
    document = read_markdown(path)
    statements = _find_statements(document)
    tables = []
    unread = list(document.unread)
    for grid in document.grids:
        stated, ambiguous = _select_constants(document, grid, statements)
        table = read_table(grid, {**stated, **constants}, ambiguous, gpu, required=bool(added))
        if table is None:
            unread.append(f"line {grid.line}: no column of the table can be recomputed")
        else:
            tables.append(table)
    return PublishedFile(document.path, document, tuple(tables), tuple(unread))


def read_table(
    grid: Grid,
    constants: Mapping[Quantity, Constant],
    ambiguous: Mapping[Quantity, str],
    gpu: Gpu | None = None,
    *,
    required: bool = False,
) -> PublishedTable | None:
    """Read a table's figures; None if nothing in it can be recomputed or checked, unless the table is required."""
    grid = _turn_upright(grid)
    headings = [cell.text for cell in grid.headings]
    columns = describe_columns(headings, grid.rows)
    indices, notes = _index_quantities(columns, headings)
    rows = [
        row
        for line, cells in zip(grid.row_lines, grid.rows, strict=True)
        if any(cell.text for cell in cells)
        for row in _read_rows(_GridRow(grid, line, cells, headings, columns, indices), gpu)
    ]
    derived = any(quantity in indices for quantity in DERIVED) or any(row.changes for row in rows)
    stated = {*indices, *(quantity for row in rows for quantity in row.figures)}
    checkable = bool(_TOTALS & stated) and len(_FACTORS & stated) > 1
    if not derived and not checkable and not required and not _has_ambiguous_result(notes):
        return None
    return PublishedTable(
        grid.title, grid.line, tuple(headings), indices, tuple(rows), dict(constants), dict(ambiguous), tuple(notes)
    )


def _turn_upright(grid: Grid) -> Grid:
    """The table by its columns if its first column holds headings of quantities and its heading row none."""
    downwards = [row for row in grid.rows if row and _describe_column(row[0].text).quantity]
    if len(downwards) < 2 or any(_describe_column(cell.text).quantity for cell in grid.headings[1:]):  # noqa: PLR2004
        return grid
    absent = Cell("n/a", grid.headings[0].span)
    rows = tuple(
        (heading, *(row[place] if place < len(row) and row[place].text else absent for row in grid.rows))
        for place, heading in enumerate(grid.headings[1:], 1)
    )
    headings = (grid.headings[0], *(row[0] if row else absent for row in grid.rows))
    lines = (grid.line,) * len(rows)
    return replace(grid, headings=headings, rows=rows, row_lines=lines, is_transposed=True)


def _has_ambiguous_result(notes: Sequence[str]) -> bool:
    """Whether two columns state one derived quantity: then the table is listed with that reason."""
    return any(note.endswith(f"both state {quantity}: neither is used") for note in notes for quantity in DERIVED)


def _index_quantities(
    columns: Sequence[ColumnMeaning], headings: Sequence[str]
) -> tuple[dict[Quantity, int], list[str]]:
    """The column of each quantity, and notes about quantities of two columns."""
    indices: dict[Quantity, int] = {}
    doubled: dict[Quantity, list[int]] = {}
    for index, column in enumerate(columns):
        if column.quantity is None:
            continue
        if column.quantity in indices:
            doubled.setdefault(column.quantity, [indices[column.quantity]]).append(index)
        else:
            indices[column.quantity] = index
    notes = []
    for quantity, repeated in doubled.items():
        names = " and ".join(f"{headings[index]!r}" for index in repeated)
        del indices[quantity]
        notes.append(f"the columns {names} both state {quantity}: neither is used")
    return indices, notes


class _GridRow(NamedTuple):
    """A row, and what its table says of its columns."""

    grid: Grid
    line: int
    cells: Sequence[Cell]
    headings: Sequence[str]
    columns: Sequence[ColumnMeaning]
    indices: Mapping[Quantity, int]


def _read_rows(row: _GridRow, gpu: Gpu | None) -> Iterator[PublishedRow]:
    """The row, and once more where a cell of a derived quantity states two values."""
    problems: dict[Quantity, str] = {}
    usable = [without_footnotes(cell) for cell in _take_cells(row.cells, row.headings, problems)]
    pairs = {index: pair for index, cell in enumerate(usable) if (pair := split_pair(cell))}
    first = [pairs[index][0] if index in pairs else cell for index, cell in enumerate(usable)]
    yield _read_row(row, first, problems, gpu)
    if any(row.indices.get(quantity) in pairs for quantity in DERIVED):
        second = [pairs[index][1] if index in pairs else cell for index, cell in enumerate(usable)]
        shared = [quantity for quantity in _MEASURED if quantity in row.indices and row.indices[quantity] not in pairs]
        missing = dict.fromkeys(shared, "one value stands beside two")
        yield replace(_read_row(row, second, problems | missing, gpu), is_second=True)


def _read_row(row: _GridRow, usable: Sequence[Cell], problems: dict[Quantity, str], gpu: Gpu | None) -> PublishedRow:
    figures = _find_stated(row.grid.headings[0], row.cells[0]) if row.grid.is_transposed else {}
    blanks: dict[Quantity, TextSpan] = {}
    absent: dict[Quantity, str] = {}
    problems = dict(problems)
    for quantity, index in row.indices.items():
        if quantity in problems:
            continue
        if index >= len(usable):
            problems[quantity] = "the row ends before this column"
        elif usable[index].text == "" and quantity in DERIVED:
            blanks[quantity] = usable[index].span
        elif usable[index].text.lower() in _ABSENT:
            absent[quantity] = usable[index].text or "the cell is empty"
        else:
            try:
                figures[quantity] = read_figure(quantity, usable[index], row.columns[index].unit)
            except UsageError as error:
                problems[quantity] = error.problem
    subject = _find_subject(row, usable, figures, gpu)
    cells = [without_footnotes(cell) for cell in row.cells[: len(usable)]]
    group = tuple(
        _group_key(cell) for column, cell in zip(row.columns, usable, strict=False) if _separates_groups(column)
    )
    return PublishedRow(
        line=row.line,
        cells=tuple(cell.text for cell in row.cells),
        label=_label(cells, row) or _first_texts(row.cells),
        group=group,
        figures=figures,
        blanks=blanks,
        numbers=tuple(leading_number(cell) for cell in cells),
        changes=tuple(change for index, cell in enumerate(cells) for change in read_changes(cell, index)),
        absent=absent,
        problems=problems,
        subject=subject,
    )


def _find_stated(*headings: Cell) -> dict[Quantity, PrintedFigure]:
    """What headings of a turned table state of a row, as ``64x H100 GPUs (GBS=128)``; the last one decides."""
    found: dict[Quantity, PrintedFigure] = {}
    for cell in headings:
        stated = [(_describe_quantity(match["key"].lower(), ""), match) for match in _STATED.finditer(cell.text)]
        stated += [(Quantity.GPUS, match) for match in _STATED_GPUS.finditer(cell.text)]
        found |= {
            quantity: PrintedFigure(Fraction(match["number"]), Fraction(1), 0, match["number"], cell.span)
            for quantity, match in stated
            if quantity is not None and int(match["number"])
        }
    return found


def _find_subject(
    row: _GridRow, usable: Sequence[Cell], figures: dict[Quantity, PrintedFigure], gpu: Gpu | None
) -> Subject:
    """What the row is about; a size in the name of its model is no exact number of parameters."""
    named: dict[str, str] = {}
    for column, cell in zip(row.columns, usable, strict=False):
        name = column.names or (GPU if column.quantity is Quantity.GPUS else None)
        is_number = name == GPU and not re.search(r"[A-Za-z]", cell.text)
        if name and not is_number and cell.text.lower() not in _ABSENT:
            named[name] = f"{named.get(name, '')} {_simplify_link(cell.text)}".strip()
    nearest = (row.cells[0].text, row.grid.headings[0].text) if row.grid.is_transposed else ()
    subject = find_subject(Names(named, gpu, (*nearest, *row.grid.above), " ".join(cell.text for cell in row.cells)))
    size = figures.get(Quantity.PARAMETERS)
    if subject.model is None or size is None:
        return subject
    if row.columns[row.indices[Quantity.PARAMETERS]].names == MODEL:
        del figures[Quantity.PARAMETERS]
    elif MODEL not in named:
        counts = total_parameters(subject.model.transformer), active_parameters(subject.model.transformer)
        if all(abs(size.number / count - 1) > SAME_SIZE for count in counts):
            other = {MODEL: f"{subject.model.transformer.name} of a heading has another size"}
            return replace(subject, model=None, unknown={**subject.unknown, **other})
    return subject


def _take_cells(cells: Sequence[Cell], headings: Sequence[str], problems: dict[Quantity, str]) -> Sequence[Cell]:
    """The cells of the row, or none if a bar inside a cell has shifted them."""
    extra = [cell for cell in cells[len(headings) :] if cell.text]
    if not extra:
        return cells[: len(headings)]
    reason = f"the row has {len(cells)} cells under {len(headings)} headings: write a bar inside a cell as \\|"
    problems.update(dict.fromkeys(Quantity, reason))
    return ()


def _separates_groups(column: ColumnMeaning) -> bool:
    """Whether rows that differ in this column have no common baseline."""
    return column.is_group or column.quantity in (Quantity.MICRO_BATCH, Quantity.PARAMETERS, Quantity.SEQ_LEN)


def _group_key(cell: Cell) -> str:
    """``16(max)`` and ``16`` are one batch size."""
    number = leading_number(cell)
    return str(number.number) if number else cell.text


def _label(cells: Sequence[Cell], row: _GridRow) -> str:
    labels = [0] if row.grid.is_transposed else []
    labels += [index for index, column in enumerate(row.columns) if column.is_label]
    labels += [row.indices[quantity] for quantity in _LABELS if quantity in row.indices]
    parts = [f"{row.headings[i]} {cells[i].text}" for i in dict.fromkeys(labels) if i < len(cells) and cells[i].text]
    return ", ".join(parts) or _first_texts(cells)


def _first_texts(cells: Sequence[Cell]) -> str:
    return " ".join(cell.text for cell in cells[:_LABEL_CELLS] if cell.text)


def _read_csv(path: Path) -> Grid:
    reader = csv.reader(read_text(path).removeprefix("\ufeff").splitlines())
    try:
        lines = [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise SourceError(path, f"is not CSV: {error}") from None
    if not lines:
        raise SourceError(path, "is empty")
    rows = [tuple(Cell(text.strip(), TextSpan(number, 0, 0)) for text in row) for number, row in lines]
    numbers = [number for number, _ in lines]
    title = path.stem.replace("_", " ").capitalize()
    return Grid(title, numbers[0], numbers[-1], rows[0], tuple(rows[1:]), tuple(numbers[1:]), (title,))
