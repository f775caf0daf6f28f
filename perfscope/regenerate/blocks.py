"""The generated blocks of a markdown file: where they stand, and what stands in them.

A block is what lies between ``<!-- perfscope: COMMAND -->`` and ``<!-- /perfscope -->``. COMMAND is a perfscope command
that reads; behind ``::`` stand the titles of the sections to keep, separated by semicolons.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from perfscope.errors import SourceError
from perfscope.sources.published.markdown import read_text, split_lines

_START = re.compile(r"<!--\s*perfscope:\s*(?P<command>.*?)\s*-->\s*")
_END = re.compile(r"<!--\s*/\s*perfscope\s*-->\s*")


@dataclass(frozen=True, slots=True)
class Block:
    """One generated block.

    Attributes:
        line: The line of its first marker, from 1.
        end: The line of its last marker.
        words: Its command, without ``perfscope``.
        sections: The titles of the sections that are kept; empty for all.
        level: The level of the heading above it, 0 without one.
        content: What stands between the markers.
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
    from markdown_it import MarkdownIt

    text = read_text(path)
    lines = split_lines(text)
    markers: list[int] = []
    headings: list[tuple[int, int]] = []
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "html_block" and token.map is not None and token.level == 0:
            markers.extend(range(*token.map))
        elif token.type == "heading_open" and token.map is not None:
            headings.append((token.map[0], int(token.tag[1:])))
    return Page(path, tuple(lines), tuple(_blocks(path, lines, markers, headings)))


def _blocks(
    path: Path, lines: Sequence[str], markers: Sequence[int], headings: Sequence[tuple[int, int]]
) -> list[Block]:
    spans: list[tuple[int, int, str]] = []
    begun: tuple[int, str] | None = None
    for index in markers:
        start = _START.fullmatch(lines[index])
        if start and begun is None:
            begun = index, start["command"]
        elif start and begun is not None:
            raise _endless(path, begun[0])
        elif _END.fullmatch(lines[index]):
            if begun is None:
                raise SourceError(path, f"line {index + 1}: a block ends that did not begin")
            spans.append((begun[0], index, begun[1]))
            begun = None
    if begun is not None:
        raise _endless(path, begun[0])
    own = [(at, level) for at, level in headings if not any(start < at < end for start, end, _ in spans)]
    return [
        _block(path, lines, span, max(((at, level) for at, level in own if at < span[0]), default=(0, 0))[1])
        for span in spans
    ]


def _endless(path: Path, start: int) -> SourceError:
    return SourceError(path, f"line {start + 1}: the block has no end", hint="add <!-- /perfscope -->")


def _block(path: Path, lines: Sequence[str], span: tuple[int, int, str], level: int) -> Block:
    start, end, text = span
    command, _, chosen = text.partition("::")
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise SourceError(path, f"line {start + 1}: the command cannot be read: {error}") from None
    if not words:
        raise SourceError(path, f"line {start + 1}: the block names no command")
    sections = tuple(title.strip() for title in chosen.split(";") if title.strip())
    return Block(start + 1, end + 1, words, sections, level, "".join(lines[start + 1 : end]))


def with_contents(page: Page, contents: Sequence[str]) -> str:
    """The page's text with new contents in its blocks; every other byte stays."""
    lines = list(page.lines)
    for block, content in sorted(zip(page.blocks, contents, strict=True), key=lambda pair: -pair[0].line):
        lines[block.line : block.end - 1] = [content]
    return "".join(lines)
