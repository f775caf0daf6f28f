"""Build the blocks of reports again from their raw files, and compare them with the reports."""

from __future__ import annotations

import difflib
import hashlib
import re
import shlex
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TypeAlias

from markdown_it import MarkdownIt

from perfscope.errors import PerfscopeError, SourceError
from perfscope.files import read_text, replace_file
from perfscope.renderers.markdown import render, render_sections
from perfscope.report import Column, Json, Report, Section
from perfscope.sources.published.markdown import Grid, parse_markdown, split_lines
from perfscope.units import format_count

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


_SHOWN_LINES = 8
_LABEL_CELLS = 3


@dataclass(frozen=True, slots=True)
class StaleCell:
    """A cell that differs from the one rebuilt from the raw files.

    Attributes:
        line: Its line in the report.
        row: The first cells of its row.
        column: Its column's heading.
        reported: Its text in the report.
        rebuilt: Its text from the raw files.
    """

    line: int
    row: str
    column: str
    reported: str
    rebuilt: str


def compare_contents(block: Block, content: str) -> tuple[tuple[StaleCell, ...], tuple[str, ...]]:
    """The cells of a block that differ from its rebuilt content, and the differing lines outside of tables."""
    if block.content == content:
        return (), ()
    old, new = parse_markdown(block.content, "old"), parse_markdown(content, "new")
    cells: list[StaleCell] = []
    old_lines: set[int] = set()
    new_lines: set[int] = set()
    for old_grid, new_grid in zip_longest(old.grids, new.grids):
        if old_grid is None or new_grid is None or not _have_same_shape(old_grid, new_grid):
            continue
        cells.extend(_compare_cells(block, old_grid, new_grid))
        old_lines.update(range(old_grid.line, old_grid.last_line + 1))
        new_lines.update(range(new_grid.line, new_grid.last_line + 1))
    old_prose = [line for number, line in enumerate(old.lines, 1) if number not in old_lines]
    new_prose = [line for number, line in enumerate(new.lines, 1) if number not in new_lines]
    compared = difflib.ndiff(old_prose, new_prose)
    lines = [line.rstrip() for line in compared if line[0] in "+-" and line[2:].strip()]
    return tuple(cells), tuple(lines[:_SHOWN_LINES])


def _have_same_shape(old: Grid, new: Grid) -> bool:
    old_headings, new_headings = ([cell.text for cell in grid.headings] for grid in (old, new))
    return old_headings == new_headings and len(old.rows) == len(new.rows)


def _compare_cells(block: Block, old: Grid, new: Grid) -> Iterator[StaleCell]:
    for line, old_row, new_row in zip(old.row_lines, old.rows, new.rows, strict=True):
        label = " ".join(cell.text for cell in old_row[:_LABEL_CELLS])
        for heading, old_cell, new_cell in zip(old.headings, old_row, new_row, strict=False):
            if old_cell.text != new_cell.text:
                yield StaleCell(block.line + line, label, heading.text, old_cell.text, new_cell.text)


NOT_COMMITTED = "not committed"
_SHORT = 12
_TIMEOUT_S = 20
_STATED = re.compile(
    r"`(?P<path>[^`]+)` \((?:(?P<count>\d+) files, )?blob `(?P<blob>[0-9a-f]{12})`, (?P<commit>[^)]*)\)"
)


@dataclass(frozen=True, slots=True)
class Source:
    """One file or folder that a block was built from.

    Attributes:
        path: As the command names it.
        files: How many files a folder holds; 1 for a file.
        blob: The git name of its content; for a folder, of the list of its files' git names.
        commit: The commit that last changed it, or ``NOT_COMMITTED``.
    """

    path: str
    files: int
    blob: str
    commit: str

    def __str__(self) -> str:
        count = f"{self.files} files, " if self.files != 1 else ""
        commit = self.commit if self.commit == NOT_COMMITTED else f"commit `{self.commit}`"
        return f"`{self.path}` ({count}blob `{self.blob}`, {commit})"


def parse_sources(text: str) -> dict[str, Source]:
    """The sources that a block already states, by path."""
    sources = {}
    for match in _STATED.finditer(text):
        commit = match["commit"].removeprefix("commit ").strip("`")
        sources[match["path"]] = Source(match["path"], int(match["count"] or 1), match["blob"], commit)
    return sources


def describe_sources(paths: Sequence[str], folder: Path, stated: Mapping[str, Source]) -> list[Source]:
    """Describe the files that a command reads.

    Args:
        paths: As the command names them, below ``folder``.
        folder: Where the command runs.
        stated: What a block already states; a commit is kept while the content is the same.

    Raises:
        SourceError: A file cannot be read.
    """
    return [_describe_source(path, folder, stated.get(path)) for path in paths]


def _describe_source(path: str, folder: Path, stated: Source | None) -> Source:
    files = _list_files(folder / path)
    blob = _blob(folder / path, files)
    if stated is not None and stated.blob == blob and not _is_known_wrong(folder / path, stated.commit):
        return Source(path, len(files), blob, stated.commit)
    return Source(path, len(files), blob, last_commit(folder / path))


def _is_known_wrong(path: Path, commit: str) -> bool:
    """Whether git can tell that a stated commit is not one of this history; a shallow clone cannot."""
    if commit == NOT_COMMITTED:
        return True
    if _git(path, "rev-parse", "--is-shallow-repository") != "false":
        return False
    return _git(path, "merge-base", "--is-ancestor", commit, "HEAD") is None


def _list_files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def _blob(path: Path, files: Iterable[Path]) -> str:
    """The git name of a file's content, or of the list of a folder's files with their git names."""
    try:
        if not path.is_dir():
            return git_blob(path.read_bytes())[:_SHORT]
        lines = [f"{git_blob(file.read_bytes())} {file.relative_to(path).as_posix()}\n" for file in files]
    except OSError as error:
        raise SourceError(path, f"cannot be read: {error.strerror}") from None
    return git_blob("".join(lines).encode())[:_SHORT]


def git_blob(content: bytes) -> str:
    """The name that ``git hash-object`` prints for a content.

    >>> git_blob(b"what is up, doc?")
    'bd9dbf5aae1a3862dd1526723246b20206e5fc37'
    """
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def last_commit(path: Path) -> str:
    """The commit that last changed a file or folder; ``NOT_COMMITTED`` without one, or after a later change."""
    changed = _git(path, "status", "--porcelain", "--", path.name)
    if changed is None or changed:
        return NOT_COMMITTED
    commit = _git(path, "log", "-1", "--format=%H", "--", path.name)
    return commit[:_SHORT] if commit else NOT_COMMITTED


def _git(path: Path, *arguments: str) -> str | None:
    try:
        answer = subprocess.run(
            ["git", "-C", str(path.parent.resolve()), *arguments],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


#: Answers a command, given as words without ``perfscope``, in the folder that its paths start from.
Answer: TypeAlias = Callable[[Sequence[str], Path], Report]

_MARKER = b"<!-- perfscope:"


@dataclass(frozen=True, slots=True)
class BuiltBlock:
    """A block, with the content that was built from its raw files.

    Attributes:
        block: The block.
        command: Its command, as a person would type it.
        content: The content built from the raw files.
        cells: The cells of the block that differ from it.
        lines: Other differences, as ``- old`` and ``+ new``.
    """

    block: Block
    command: str
    content: str
    cells: tuple[StaleCell, ...]
    lines: tuple[str, ...]

    @property
    def is_stale(self) -> bool:
        """Whether the report differs from the raw files."""
        return self.content != self.block.content


@dataclass(frozen=True, slots=True)
class BuiltPage:
    """A report and its blocks."""

    page: Page
    blocks: tuple[BuiltBlock, ...]

    @property
    def stale(self) -> tuple[BuiltBlock, ...]:
        """The blocks that differ from their raw files."""
        return tuple(block for block in self.blocks if block.is_stale)


def build_pages(path: Path, answer: Answer) -> list[BuiltPage]:
    """Build a report, or every report below a folder; nothing is written.

    Args:
        path: A markdown file, or a folder.
        answer: What runs the command of a block.

    Raises:
        SourceError: There is no block, or one cannot be regenerated.
    """
    if not path.exists():
        raise SourceError(path, "does not exist")
    files = _find_reports(path) if path.is_dir() else [path]
    pages = [page for page in map(read_page, files) if page.blocks]
    if not pages:
        hint = "a block begins with <!-- perfscope: COMMAND --> and ends with <!-- /perfscope -->"
        raise SourceError(path, "contains no block to regenerate", hint=hint)
    return [BuiltPage(page, tuple(_build_block(page, block, answer) for block in page.blocks)) for page in pages]


def _find_reports(folder: Path) -> list[Path]:
    """The markdown files with a marker below a folder; hidden folders (environments, caches) are left out."""
    visible = (
        file
        for file in folder.rglob("*.md")
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    )
    return sorted(file for file in visible if _MARKER in file.read_bytes())


def write_pages(pages: Sequence[BuiltPage]) -> None:
    """Write the reports whose blocks changed."""
    for built in pages:
        if built.stale:
            text = replace_contents(built.page, [block.content for block in built.blocks])
            replace_file(built.page.path, text.encode("utf-8", "surrogateescape"))


def _build_block(page: Page, block: Block, answer: Answer) -> BuiltBlock:
    try:
        folder, paths = _find_sources(page.path.parent.resolve(), block.words)
        text = _render(answer(block.words, folder), block)
        sources = describe_sources(paths, folder, parse_sources(block.content))
    except PerfscopeError as error:
        problem = f"line {block.line}: the block cannot be regenerated: {error.problem}"
        raise SourceError(page.path, problem, hint=error.hint) from None
    command = f"perfscope {shlex.join(block.words)}"
    content = f"\n{text}\n{_footer(sources, command)}\n\n"
    cells, lines = compare_contents(block, content)
    return BuiltBlock(block, command, content, cells, lines)


def _render(report: Report, block: Block) -> str:
    """The report, or the sections that the block selects, one level below the heading above the block."""
    if block.sections:
        return render_sections(report.select(block.sections), block.level + 2)
    return render(report, block.level + 1)


def _find_sources(folder: Path, words: Sequence[str]) -> tuple[Path, list[str]]:
    """The folder that the command's paths start from, and those paths.

    It is the report's own folder, or the nearest one above in which a path of the command exists.
    """
    candidates = [word for word in words[1:] if not word.startswith("-") and ("/" in word or "." in word)]
    for start in (folder, *folder.parents):
        paths = [word for word in candidates if (start / word).exists()]
        if paths:
            return start, paths
        if (start / ".git").exists():
            break
    return folder, []


def _footer(sources: Sequence[Source], command: str) -> str:
    files = f"From {', '.join(map(str, sources))} by `{command}`." if sources else f"By `{command}`."
    return f"_{files}_"


def to_report(pages: Sequence[BuiltPage], *, written: bool) -> Report:
    """The neutral document, which lists the stale cells one by one."""
    blocks = [(page, block) for page in pages for block in page.blocks]
    stale = [(page, block) for page, block in blocks if block.is_stale]
    verb = "rewritten" if written else "stale"
    data: dict[str, Json] = {
        "schema": "perfscope/build/1",
        "written": written and bool(stale),
        "results": {"reports": [_page_data(page) for page in pages]},
    }
    title = f"{format_count(len(pages), 'report')} with {format_count(len(blocks), 'block')}, {len(stale)} {verb}"
    sections = [_summary(pages)]
    if stale and not written:
        if any(block.cells for _, block in stale):
            sections.append(_cells(stale))
        lines = tuple(
            f"{page.page.path}, block at line {block.block.line}: {line}"
            for page, block in stale
            for line in block.lines
        )
        if lines:
            sections.append(Section("Other lines that differ", notes=tuple(f"`{line}`" for line in lines)))
    return Report(title, data, tuple(sections))


def _summary(pages: Sequence[BuiltPage]) -> Section:
    rows = tuple((str(page.page.path), len(page.blocks), len(page.stale)) for page in pages)
    return Section("Reports", (Column("Report"), Column("Blocks"), Column("Stale")), rows)


def _cells(stale: Sequence[tuple[BuiltPage, BuiltBlock]]) -> Section:
    columns = ("Report", "Line", "Row", "Column", "In the report", "From the raw files")
    rows = tuple(
        (str(page.page.path), str(cell.line), cell.row, cell.column, cell.reported, cell.rebuilt)
        for page, block in stale
        for cell in block.cells
    )
    return Section("Cells that differ", tuple(Column(name) for name in columns), rows)


def _page_data(page: BuiltPage) -> Json:
    return {
        "path": str(page.page.path),
        "blocks": [
            {
                "line": block.block.line,
                "command": block.command,
                "stale": block.is_stale,
                "cells": [
                    {
                        "line": cell.line,
                        "row": cell.row,
                        "column": cell.column,
                        "reported": cell.reported,
                        "rebuilt": cell.rebuilt,
                    }
                    for cell in block.cells
                ],
                "lines": list(block.lines),
            }
            for block in page.blocks
        ],
    }
