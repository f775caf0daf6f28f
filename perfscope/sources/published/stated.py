"""Constants that a report states in its text and not in a column: ``Seq length is 1024``, ``BS=1024, SIZE=104B``.

The nearest statement in the outline of the document counts: under the table's own heading, else under a heading above
it; a sequence length also from anywhere else. Two different values in one part of the text are ambiguous, and neither
is used.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from perfscope.constants import GIGA, MEGA
from perfscope.sources.published.markdown import Document, Grid, Heading
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
_DP_IS_GPUS = re.compile(r"(?<![\w*])DP\s*=\s*(?:number of )?GPUs\b", re.I)


@dataclass(frozen=True, slots=True)
class Statement:
    """One constant that the text states.

    Attributes:
        quantity: What it states.
        value: Its value.
        line: Its line, from 1.
        rank: The rank of its pattern in the order of trust; 0 is the most trusted.
    """

    quantity: Quantity
    value: int
    line: int
    rank: int


@dataclass(frozen=True, slots=True)
class StatedConstants:
    """The constants that the text states for one table, and the problem with each that it states with two values."""

    constants: dict[Quantity, Constant]
    ambiguous: dict[Quantity, str]
    dp_is_gpus: bool


def find_statements(document: Document) -> list[Statement]:
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


def select_constants(document: Document, grid: Grid, statements: Sequence[Statement]) -> StatedConstants:
    """The constants of one table, by the statements that apply to it."""
    stated = StatedConstants({}, {}, dp_is_gpus=_states_dp_is_gpus(document, grid))
    scopes = _scopes(document.headings, grid.line, len(document.lines))
    for quantity in dict.fromkeys(quantity for quantity, _, _ in _PATTERNS):
        everywhere = [(1, len(document.lines))] if quantity in _SAME_EVERYWHERE else []
        for first, last in [*scopes, *everywhere]:
            here = [entry for entry in statements if entry.quantity is quantity and first <= entry.line <= last]
            if here:
                _set_constant(stated, quantity, here, document, grid)
                break
    return stated


def _set_constant(
    stated: StatedConstants, quantity: Quantity, here: Sequence[Statement], document: Document, grid: Grid
) -> None:
    """Set a constant to the value of the statements in one range of lines, or note that their values differ."""
    before, after = _neighbours(document, grid)
    near = _most_trusted([entry for entry in here if before <= entry.line <= after])
    above = _most_trusted([entry for entry in near if entry.line < grid.line])
    everywhere = _most_trusted(here)
    candidates = (near, above, everywhere)
    here = next((entries for entries in candidates if len({entry.value for entry in entries}) == 1), everywhere)
    if len({entry.value for entry in here}) > 1:
        values = ", ".join(f"{entry.value} (line {entry.line})" for entry in here)
        stated.ambiguous[quantity] = f"the text states the {quantity} as {values}"
    else:
        nearest = min(here, key=lambda entry: abs(entry.line - grid.line))
        stated.constants[quantity] = Constant(nearest.value, f"line {nearest.line}")


def _most_trusted(entries: Sequence[Statement]) -> list[Statement]:
    """The statements of the most trusted kind."""
    best = min((entry.rank for entry in entries), default=0)
    return [entry for entry in entries if entry.rank == best]


def _scopes(headings: Sequence[Heading], line: int, last_line: int) -> list[tuple[int, int]]:
    """The ranges of lines around a table whose statements apply to it, from the nearest on.

    They are the text under the table's own heading, then its whole section, then the text under each heading above it
    in the outline. A chapter's text before its first section applies to all of its sections, a section's to no other.
    """
    scopes: list[tuple[int, int]] = []
    level = _BELOW_ALL
    for heading in reversed([heading for heading in headings if heading.line <= line]):
        if heading.level >= level:
            continue
        following = [later for later in headings if later.line > heading.line]
        own_end = min((later.line for later in following), default=last_line + 1) - 1
        scopes.append((heading.line, own_end))
        if level == _BELOW_ALL:
            section_end = (
                min((later.line for later in following if later.level <= heading.level), default=last_line + 1) - 1
            )
            scopes.append((heading.line, section_end))
        level = heading.level
    first = headings[0].line - 1 if headings else last_line
    return [*scopes, (1, first)]


def _neighbours(document: Document, grid: Grid) -> tuple[int, int]:
    """The first and the last line between the table before and the table after."""
    before = max((table.last_line for table in document.grids if table.last_line < grid.line), default=0)
    after = min(
        (table.line for table in document.grids if table.line > grid.last_line), default=len(document.lines) + 1
    )
    return before + 1, after - 1


def _states_dp_is_gpus(document: Document, grid: Grid) -> bool:
    _, after = _neighbours(document, grid)
    return any(_DP_IS_GPUS.search(line) for line in document.lines[grid.last_line : after])
