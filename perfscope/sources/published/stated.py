"""Constants that a report states in its text and not in a column: ``Seq length is 1024``, ``BS=1024, SIZE=104B``.

The nearest statement counts: above the table, below it, under its heading, else under a heading above that; a sequence
length also from anywhere else. Two different values in one part of the text are ambiguous, and neither is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

from perfscope.constants import GIGA, MEGA
from perfscope.sources.published.markdown import Grid, Heading, MarkdownDocument
from perfscope.tables.published import Constant, Quantity

# In the order of trust: a sentence, the formula itself, a variable of some script.
_PATTERNS: tuple[tuple[Quantity, int, re.Pattern[str]], ...] = (
    (Quantity.SEQ_LEN, 0, re.compile(r"\bseq(?:uence)?[ _-]?len(?:gth)?s?`?\s*(?:is|=|:|of)\s*`?(?P<value>\d+)", re.I)),
    (Quantity.SEQ_LEN, 1, re.compile(r"[34]\s*\*\s*2\s*\*\s*(?P<value>\d{2,7})\s*\*")),
    (Quantity.SEQ_LEN, 2, re.compile(r"(?:\bSEQ_?LEN(?:GTH)?=|--seq-length[ =]|\bseq\s*=\s*)(?P<value>\d+)", re.I)),
    (Quantity.PASSES, 0, re.compile(r"\bfactor (?:of |is |= ?)?`?(?P<value>[34])\b(?!\.\d)")),
    (Quantity.PASSES, 1, re.compile(r"(?P<value>[34])\s*\*\s*2\s*\*\s*(?:\d{2,7}|\$?\w*seq\w*)\s*\*", re.I)),
    (Quantity.TENSOR_PARALLEL, 0, re.compile(r"(?<![\w*])TP(?:_SIZE)?\s*=\s*(?P<value>\d+)")),
    (Quantity.TENSOR_PARALLEL, 1, re.compile(r"tensor-model-parallel-size[ =](?P<value>\d+)")),
    (
        Quantity.PARAMETERS,
        0,
        re.compile(
            r"(?<![\w*$-])(?:model[ _]?)?M?size`?\s*(?:is|=|:)\s*`?(?P<value>\d+(?:\.\d+)?)\s*(?P<unit>[BM])\b", re.I
        ),
    ),
    (Quantity.PARAMETERS, 1, re.compile(r"\$ms\s*=\s*(?P<value>\d+(?:\.\d+)?)\b")),
    (
        Quantity.GLOBAL_BATCH,
        0,
        re.compile(
            r"(?<![\w*$-])(?:G?BS|glob(?:al)?[ _-](?:bs|batch(?:[ _-]size)?))`?\s*(?:is|=|:)\s*`?(?P<value>\d+)\b"
            r"(?![.*])",
            re.I,
        ),
    ),
    (Quantity.GLOBAL_BATCH, 1, re.compile(r"\$gbs\s*=\s*(?P<value>\d+)\b")),
)
# What a report rarely changes between its sections, unlike the parallel layout of a model.
_SAME_EVERYWHERE = (Quantity.SEQ_LEN, Quantity.PASSES)
_BELOW_ALL = 7
_LARGEST = 10**15


@dataclass(frozen=True, slots=True)
class Statement:
    """One constant that the text states in a line; the rank of its pattern is 0 for the most trusted."""

    quantity: Quantity
    value: int
    line: int
    rank: int


@dataclass(frozen=True, slots=True)
class StatedConstants:
    """The constants that the text states for one table, and the problem with each that it states with two values."""

    constants: dict[Quantity, Constant]
    ambiguous: dict[Quantity, str]


def find_statements(document: MarkdownDocument) -> list[Statement]:
    """Every constant that the text outside of tables states."""
    inside = {line for grid in document.grids for line in range(grid.line, grid.last_line + 1)}
    statements: list[Statement] = []
    for number, line in enumerate(document.lines, 1):
        if number in inside:
            continue
        for quantity, rank, pattern in _PATTERNS:
            statements.extend(
                Statement(quantity, _value(quantity, match), number, rank) for match in pattern.finditer(line)
            )
    return [statement for statement in statements if 0 < statement.value < _LARGEST]


def _value(quantity: Quantity, match: re.Match[str]) -> int:
    if quantity is not Quantity.PARAMETERS:
        return int(match["value"])
    unit = (match.groupdict().get("unit") or "B").upper()
    return int(Decimal(match["value"]) * (GIGA if unit == "B" else MEGA))


def select_constants(document: MarkdownDocument, grid: Grid, statements: Sequence[Statement]) -> StatedConstants:
    """The constants of one table, by the statements that apply to it."""
    stated = StatedConstants({}, {})
    for quantity in dict.fromkeys(quantity for quantity, _, _ in _PATTERNS):
        of_quantity = [entry for entry in statements if entry.quantity is quantity]
        everywhere = [(1, len(document.lines))] if quantity in _SAME_EVERYWHERE else []
        for first, last in (*_scopes(document, grid), *everywhere):
            here = [entry for entry in of_quantity if first <= entry.line <= last]
            here = [entry for entry in here if entry.rank == min(each.rank for each in here)]
            if len({entry.value for entry in here}) > 1:
                values = ", ".join(f"{entry.value} (line {entry.line})" for entry in here)
                stated.ambiguous[quantity] = f"the text states the {quantity} as {values}"
            elif here:
                stated.constants[quantity] = Constant(here[-1].value, f"line {here[-1].line}")
            if here:
                break
    return stated


def _scopes(document: MarkdownDocument, grid: Grid) -> Iterator[tuple[int, int]]:
    """The ranges of lines whose statements apply to a table, from the nearest on.

    They are the text up to the table before and the one after it, the section, and the text under each heading above it
    in the outline: what a chapter says before its first section applies to all of its sections.
    """
    end = len(document.lines) + 1
    headings = [*document.headings, Heading(end, 0, "")]
    begin = max((heading.line for heading in headings if heading.line <= grid.line), default=1)
    close = next(heading.line for heading in headings if heading.line > grid.line)
    before = max((table.last_line + 1 for table in document.grids if table.last_line < grid.line), default=1)
    after = min((table.line for table in document.grids if table.line > grid.last_line), default=end)
    yield max(begin, before), grid.line
    yield grid.last_line, min(close, after) - 1
    level = _BELOW_ALL
    for number, heading in reversed(list(enumerate(document.headings))):
        if heading.line <= grid.line and heading.level < level:
            yield heading.line, headings[number + 1].line - 1
            level = heading.level
    yield 1, headings[0].line - 1
