"""The generated blocks of a markdown file: their lines, their commands and their contents.

A block is the text between ``<!-- perfscope: COMMAND -->`` and ``<!-- /perfscope -->``. COMMAND is a perfscope command
that only reads; after ``::`` come the titles of the sections to select, separated by semicolons.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

from perfscope.errors import SourceError
from perfscope.files import read_text
from perfscope.sources.published.markdown import split_lines

_START = re.compile(r"<!--\s*perfscope:\s*(?P<command>.*?)\s*-->\s*")
_END = re.compile(r"<!--\s*/\s*perfscope\s*-->\s*")


@dataclass(frozen=True, slots=True)
class Block:
    """One generated block.

    Attributes:
        line: The line of its first marker, from 1.
        end: The line of its last marker.
        words: Its command, without ``perfscope``.
        sections: The titles of the selected sections; empty for the whole report.
        level: The level of the heading above it; 0 without a heading.
        content: The text between the markers.
    """

    line: int
    end: int
    words: tuple[str, ...]
    sections: tuple[str, ...]
    level: int
    content: str


@dataclass(frozen=True, slots=True)
class Page:
    """A markdown file with generated blocks."""

    path: Path
    lines: tuple[str, ...]
    blocks: tuple[Block, ...]


def read_page(path: Path) -> Page:
    """Find the blocks of a markdown file; markers in code are text.

    Raises:
        SourceError: A block has no end, or its command cannot be read.
    """
    text = read_text(path)
    lines = split_lines(text)
    markers: list[int] = []
    headings: list[tuple[int, int]] = []
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "html_block" and token.map is not None and token.level == 0:
            markers.extend(range(*token.map))
        elif token.type == "heading_open" and token.map is not None:
            headings.append((token.map[0], int(token.tag[1:])))
    return Page(path, tuple(lines), tuple(_parse_blocks(path, lines, markers, headings)))


def _parse_blocks(
    path: Path, lines: Sequence[str], markers: Sequence[int], headings: Sequence[tuple[int, int]]
) -> Iterator[Block]:
    """The blocks between the marker lines; ``headings`` are the line and the level of each heading."""
    spans = _pair_markers(path, lines, markers)
    written = [
        (line, level) for line, level in headings if not any(start < line < end for start, end, _ in spans)
    ]  # by hand: not inside a block
    for start, end, command in spans:
        _, level = max(((line, level) for line, level in written if line < start), default=(0, 0))
        yield _parse_block(path, lines, (start, end), command, level)


def _pair_markers(path: Path, lines: Sequence[str], markers: Sequence[int]) -> list[tuple[int, int, str]]:
    """The first line, the last line and the command of each block."""
    spans: list[tuple[int, int, str]] = []
    start: tuple[int, str] | None = None
    for line in markers:
        match = _START.fullmatch(lines[line])
        if match and start is None:
            start = line, match["command"]
        elif match and start is not None:
            raise _unclosed(path, start[0])
        elif _END.fullmatch(lines[line]):
            if start is None:
                raise SourceError(path, f"line {line + 1}: a block ends that did not begin")
            spans.append((start[0], line, start[1]))
            start = None
    if start is not None:
        raise _unclosed(path, start[0])
    return spans


def _unclosed(path: Path, start: int) -> SourceError:
    return SourceError(path, f"line {start + 1}: the block has no end", hint="add <!-- /perfscope -->")


def _parse_block(path: Path, lines: Sequence[str], span: tuple[int, int], text: str, level: int) -> Block:
    start, end = span
    command, _, selection = text.partition("::")
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise SourceError(path, f"line {start + 1}: the command cannot be read: {error}") from None
    if not words:
        raise SourceError(path, f"line {start + 1}: the block names no command")
    sections = tuple(title.strip() for title in selection.split(";") if title.strip())
    return Block(start + 1, end + 1, words, sections, level, "".join(lines[start + 1 : end]))


def replace_contents(page: Page, contents: Sequence[str]) -> str:
    """The page's text with new contents in its blocks; every other byte stays."""
    lines = list(page.lines)
    for block, content in sorted(zip(page.blocks, contents, strict=True), key=lambda pair: -pair[0].line):
        lines[block.line : block.end - 1] = [content]
    return "".join(lines)
