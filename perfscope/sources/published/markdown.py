"""Markdown as lines and tables, with the position of every cell, so that a cell can be changed and nothing else.

markdown-it-py finds the lines that are tables. The positions of the cells in a line are found here and compared with
its result.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from perfscope.files import read_text
from perfscope.tables.published import TextSpan

# The line ends of markdown-it; str.splitlines has further ones, which would shift every line after them.
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_CONTAINER = re.compile(r"(?:[\s>]|[-*+](?=\s)|\d+[.)](?=\s))*")
_MARKER = re.compile(r"\s*<!--\s*(?P<end>/)?\s*perfscope\b")


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell: its text without the blanks around it, and the position of that text."""

    text: str
    span: TextSpan


@dataclass(frozen=True, slots=True)
class Grid:
    """A table as printed, under the nearest heading above it.

    ``line`` is that of its heading row, from 1. A row can hold fewer or more cells than the heading row. ``above`` are
    the headings that it stands under, the nearest first. ``is_transposed`` says that its rows were columns.
    """

    title: str
    line: int
    last_line: int
    headings: tuple[Cell, ...]
    rows: tuple[tuple[Cell, ...], ...]
    row_lines: tuple[int, ...]
    above: tuple[str, ...] = ()
    is_transposed: bool = False


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading of the document: its line, its level (1 to 6) and its text."""

    line: int
    level: int
    text: str


@dataclass(frozen=True, slots=True)
class MarkdownDocument:
    """A markdown file, its lines with their ends; ``unread`` names tables whose cells cannot be separated."""

    path: str
    lines: tuple[str, ...]
    headings: tuple[Heading, ...]
    grids: tuple[Grid, ...]
    unread: tuple[str, ...]


def read_markdown(path: Path) -> MarkdownDocument:
    """Read a markdown file; bytes that are no UTF-8 survive a later write."""
    return parse_markdown(read_text(path), os.fspath(path))


def parse_markdown(text: str, path: str) -> MarkdownDocument:
    """Find the headings and tables of a text; generated blocks (between perfscope markers) are not read."""
    lines = split_lines(text)
    tokens = MarkdownIt("commonmark").enable("table").parse(text.removeprefix("\ufeff"))
    headings = tuple(_headings(tokens))
    generated = _generated_lines(lines)
    grids: list[Grid] = []
    unread: list[str] = []
    for rows in _tables(tokens):
        first = rows[0][0]
        if first + 1 in generated:
            continue
        grid = _grid(lines, rows, tuple(heading.text for heading in outline(headings, first + 1)))
        if grid is None:
            unread.append(f"line {first + 1}: the cells of the table cannot be separated")
        else:
            grids.append(grid)
    return MarkdownDocument(path, tuple(lines), headings, tuple(grids), tuple(unread))


def split_lines(text: str) -> list[str]:
    """Split into lines that keep their ends; joined they give the text again."""
    return _LINE.findall(text)


def split_cells(line: str, line_number: int, start: int = 0) -> list[Cell]:
    """Split a table's row at its unescaped pipes, from an offset on."""
    end = len(line.rstrip())
    while start < end and line[start].isspace():
        start += 1
    bars = [at for at in range(start, end) if line[at] == "|" and (at == start or line[at - 1] != "\\")]
    edges = [start - 1, *bars, end]
    cells = [_cell(line, line_number, before + 1, after) for before, after in pairwise(edges)]
    if bars and bars[0] == start:
        cells = cells[1:]
    if bars and bars[-1] == end - 1:
        cells = cells[:-1]
    return cells


def _cell(line: str, line_number: int, start: int, end: int) -> Cell:
    """The cell between two bars; the position of an empty one is its blanks without the first and the last."""
    text = line[start:end]
    stripped = text.strip()
    if not stripped:
        return Cell("", TextSpan(line_number, min(start + 1, end), max(start + 1, end - 1) if end > start else end))
    start += len(text) - len(text.lstrip())
    return Cell(stripped, TextSpan(line_number, start, start + len(stripped)))


def _headings(tokens: Sequence[Token]) -> Iterator[Heading]:
    for opening, inline in pairwise(tokens):
        if opening.type == "heading_open" and opening.map is not None:
            yield Heading(opening.map[0] + 1, int(opening.tag[1:]), inline.content.strip())


def outline(headings: Sequence[Heading], line: int) -> Iterator[Heading]:
    """The headings that a line stands under, from the nearest on."""
    level = 7  # below all
    for heading in reversed(headings):
        if heading.line <= line and heading.level < level:
            yield heading
            level = heading.level


def _tables(tokens: Sequence[Token]) -> list[list[tuple[int, list[str]]]]:
    """The rows of each table: their line, from 0, and the texts of their cells."""
    tables: list[list[tuple[int, list[str]]]] = []
    is_inside = False
    for token in tokens:
        if token.type == "table_open":
            tables.append([])
        is_inside = token.type != "table_close" and (is_inside or token.type == "table_open")
        if token.type == "tr_open" and token.map is not None:
            tables[-1].append((token.map[0], []))
        elif token.type == "inline" and is_inside:
            tables[-1][-1][1].append(token.content)
    return tables


def _grid(lines: Sequence[str], rows: Sequence[tuple[int, list[str]]], above: tuple[str, ...]) -> Grid | None:
    located = [_locate_cells(lines[line], line + 1, texts) for line, texts in rows]
    cells = [tuple(row) for row in located if row is not None]
    if len(cells) < len(rows):
        return None
    numbers = tuple(line + 1 for line, _ in rows)
    title = above[0] if above else ""
    return Grid(title, numbers[0], numbers[-1], cells[0], tuple(cells[1:]), numbers[1:], above)


def _locate_cells(line: str, line_number: int, texts: Sequence[str]) -> list[Cell] | None:
    """Find the cells that markdown-it read in their line; None if the line has other cells."""
    container = _CONTAINER.match(line)
    for start in (0, container.end() if container else 0):
        cells = split_cells(line, line_number, start)
        read = [cell.text.replace("\\|", "|") for cell in cells]
        expected = [text.strip() for text in texts]
        width = min(len(read), len(expected))
        if read[:width] == expected[:width] and not any(expected[width:]):
            return cells
    return None


def _generated_lines(lines: Sequence[str]) -> set[int]:
    inside = False
    generated = set()
    for number, line in enumerate(lines, 1):
        marker = _MARKER.match(line)
        if marker:
            inside = marker["end"] is None
        if inside:
            generated.add(number)
    return generated
