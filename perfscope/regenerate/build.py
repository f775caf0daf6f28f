"""Build the blocks of reports again from their raw files, and compare them with the reports."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TypeAlias

from perfscope.errors import PerfscopeError, SourceError
from perfscope.files import replace_file
from perfscope.regenerate.blocks import Block, Page, read_page, replace_contents
from perfscope.regenerate.provenance import Source, describe_sources, parse_sources
from perfscope.regenerate.stale import StaleCell, compare_contents
from perfscope.renderers.markdown import render, render_sections
from perfscope.report import Report

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


class Commits(Enum):
    """Where the commit of a file comes from that has not changed since its block was built."""

    KEPT = "kept"
    LOOKED_UP = "looked up"


def build_pages(path: Path, answer: Answer, commits: Commits = Commits.KEPT) -> list[BuiltPage]:
    """Build a report, or every report below a folder; nothing is written.

    Args:
        path: A markdown file, or a folder.
        answer: What runs the command of a block.
        commits: Whether the commits of unchanged files are looked up.

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
    return [
        BuiltPage(page, tuple(_build_block(page, block, answer, commits) for block in page.blocks)) for page in pages
    ]


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


def _build_block(page: Page, block: Block, answer: Answer, commits: Commits) -> BuiltBlock:
    try:
        folder, paths = _find_sources(page.path.parent.resolve(), block.words)
        text = _render(answer(block.words, folder), block)
        stated = parse_sources(block.content) if commits is Commits.KEPT else {}
        sources = describe_sources(paths, folder, stated)
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
