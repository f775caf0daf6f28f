"""Build the blocks of reports again from their raw files, and compare them with the reports."""

from __future__ import annotations

import difflib
import hashlib
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TypeAlias

from perfscope.errors import PerfscopeError, SourceError
from perfscope.files import read_text, replace_file
from perfscope.renderers.markdown import render, render_sections
from perfscope.report import MOST_ROWS, Column, Json, Report, Section
from perfscope.units import format_count

_MARK = re.compile(r"^<!--[ \t]*(?:perfscope:(?P<command>[^\n]*?)|/[ \t]*perfscope)[ \t]*-->[ \t]*\r?\n?", re.MULTILINE)
_HEADING = re.compile(r"^(#{1,6}) ", re.MULTILINE)
_CODE = re.compile(r"^(```|~~~).*?(?:^\1|\Z)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class ReportBlock:
    """One generated block, and where its content begins and ends in the text.

    ``words`` are its command without ``perfscope``, ``sections`` the titles that it selects, none for all.
    ``level`` is the level of the heading above it, 0 without one.
    """

    line: int
    begin: int
    end: int
    words: tuple[str, ...]
    sections: tuple[str, ...]
    level: int
    content: str


def find_blocks(path: Path, text: str) -> Iterator[ReportBlock]:
    """The blocks of a markdown file; markers in code are text. Fails where a block has no end or no command."""
    masked = _CODE.sub(lambda code: re.sub(r"[^\n]", " ", code[0]), text)
    marks = list(_MARK.finditer(masked))
    level = closed = 0
    for start, end in zip_longest(marks[::2], marks[1::2]):
        line = text.count("\n", 0, start.start()) + 1
        if start["command"] is None:
            raise SourceError(path, f"line {line}: a block ends that did not begin")
        if end is None or end["command"] is not None:
            raise SourceError(path, f"line {line}: the block has no end", hint="add <!-- /perfscope -->")
        headings = _HEADING.findall(masked, closed, start.start())
        level, closed = len(headings[-1]) if headings else level, end.end()
        command, _, selection = start["command"].partition("::")
        try:
            words = tuple(shlex.split(command))
        except ValueError as error:
            raise SourceError(path, f"line {line}: the command cannot be read: {error}") from None
        if not words:
            raise SourceError(path, f"line {line}: the block names no command")
        sections = tuple(title.strip() for title in selection.split(";") if title.strip())
        content = text[start.end() : end.start()]
        yield ReportBlock(line, start.end(), end.start(), words, sections, level, content)


def describe_source(path: Path, name: str) -> str:
    """A file with the git name of its content; for a folder, of the list of its files with their git names."""
    try:
        if not path.is_dir():
            return f"`{name}` (blob `{git_blob(path.read_bytes())[:12]}`)"
        files = sorted(file for file in path.rglob("*") if file.is_file())
        lines = [f"{git_blob(file.read_bytes())} {file.relative_to(path).as_posix()}\n" for file in files]
    except OSError as error:
        raise SourceError(path, f"cannot be read: {error.strerror}") from None
    return f"`{name}` ({len(files)} files, blob `{git_blob(''.join(lines).encode())[:12]}`)"


def git_blob(content: bytes) -> str:
    """The name that ``git hash-object`` prints for a content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


#: Answers a command, given as words without ``perfscope``, in the folder that its paths start from.
Answer: TypeAlias = Callable[[Sequence[str], Path], Report]

_MARKER = b"<!-- perfscope:"


@dataclass(frozen=True, slots=True)
class BuiltBlock:
    """A block, its command as a person would type it, and the content built from its raw files."""

    block: ReportBlock
    command: str
    content: str

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines that differ by more than widths of columns from the raw files, as ``-old`` and ``+new``."""
        old, new = (
            [" ".join(re.sub("--+", "--", line).split()) for line in text.splitlines()]
            for text in (self.block.content, self.content)
        )
        compared = difflib.unified_diff(old, new, n=0, lineterm="")
        return tuple(line for line in compared if not line.startswith(("---", "+++", "@@")) and line[1:].strip())

    @property
    def is_stale(self) -> bool:
        """Whether the report differs from the raw files."""
        return self.content != self.block.content

    def data(self) -> Json:
        """The block for JSON."""
        return {"line": self.block.line, "command": self.command, "stale": self.is_stale, "lines": self.lines}


@dataclass(frozen=True, slots=True)
class BuiltPage:
    """A report: its file, its text and its blocks."""

    path: Path
    text: str
    blocks: tuple[BuiltBlock, ...]

    @property
    def stale(self) -> tuple[BuiltBlock, ...]:
        """The blocks that differ from their raw files."""
        return tuple(block for block in self.blocks if block.is_stale)


def build_pages(path: Path, answer: Answer) -> list[BuiltPage]:
    """Build a report, or every report below a folder; nothing is written. ``answer`` runs the command of a block.

    Fails where there is no block, or one cannot be regenerated.
    """
    if not path.exists():
        raise SourceError(path, "does not exist")
    files = _find_reports(path) if path.is_dir() else [path]
    pages = []
    for file in files:
        text = read_text(file)
        blocks = tuple(_build_block(file, block, answer) for block in find_blocks(file, text))
        pages += [BuiltPage(file, text, blocks)] if blocks else []
    if not pages:
        hint = "a block begins with <!-- perfscope: COMMAND --> and ends with <!-- /perfscope -->"
        raise SourceError(path, "contains no block to regenerate", hint=hint)
    return pages


def _find_reports(folder: Path) -> list[Path]:
    """The markdown files with a marker below a folder; hidden ones (environments, caches) are left out."""
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
            text = built.text
            for block in reversed(built.blocks):
                text = text[: block.block.begin] + block.content + text[block.block.end :]
            replace_file(built.path, text.encode("utf-8", "surrogateescape"))


def _build_block(path: Path, block: ReportBlock, answer: Answer) -> BuiltBlock:
    try:
        folder, paths = _find_sources(path.parent.resolve(), block.words)
        text = _render(answer(block.words, folder), block)
        sources = [describe_source(folder / name, name) for name in paths]
    except PerfscopeError as error:
        problem = f"line {block.line}: the block cannot be regenerated: {error.problem}"
        raise SourceError(path, problem, hint=error.hint) from None
    command = f"perfscope {shlex.join(block.words)}"
    printed = "perfscope report build" if block.words[0] == "report" else command  # a table is no command of its own
    origin = f"From {', '.join(sources)} by `{printed}`." if sources else f"By `{printed}`."
    return BuiltBlock(block, command, f"\n{text}\n_{origin}_\n\n")


def _render(report: Report, block: ReportBlock) -> str:
    if block.sections:
        return render_sections(report.select(block.sections), block.level + 2)
    return render(report, block.level + 1)


def _find_sources(folder: Path, words: Sequence[str]) -> tuple[Path, list[str]]:
    """The command's paths, and the folder that they start from: the report's own, or the nearest one above."""
    candidates = [word for word in words[1:] if not word.startswith("-") and ("/" in word or "." in word)]
    for start in (folder, *folder.parents):
        paths = [word for word in candidates if (start / word).exists()]
        if paths:
            return start, paths
        if (start / ".git").exists():
            break
    return folder, []


def report_pages(pages: Sequence[BuiltPage], *, written: bool) -> Report:
    """The neutral document, which lists the lines that differ."""
    blocks = [(page, block) for page in pages for block in page.blocks]
    stale = [(page, block) for page, block in blocks if block.is_stale]
    verb = "rewritten" if written else "stale"
    data: dict[str, Json] = {
        "schema": "perfscope/build/1",
        "written": written and bool(stale),
        "results": {
            "reports": [{"path": str(page.path), "blocks": [block.data() for block in page.blocks]} for page in pages]
        },
    }
    title = f"{format_count(len(pages), 'report')} with {format_count(len(blocks), 'block')}, {len(stale)} {verb}"
    rows = tuple((str(page.path), len(page.blocks), len(page.stale)) for page in pages)
    sections = [Section("Reports", (Column("Report"), Column("Blocks"), Column("Stale")), rows)]
    if stale and not written:
        lines = tuple(
            f"{page.path}, block at line {block.block.line}: `{line}`"
            for page, block in stale
            for line in block.lines[:MOST_ROWS]
        )
        sections.append(Section("Lines that differ", notes=lines))
    return Report(title, data, tuple(sections))
