"""Write the blocks of reports again from their raw files, or say where a report is not what they say."""

from __future__ import annotations

import contextlib
import difflib
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import zip_longest
from pathlib import Path

import typer

from perfscope.errors import PerfscopeError, SourceError
from perfscope.files import replace_file
from perfscope.regenerate.blocks import Block, Page, read_page, with_contents
from perfscope.regenerate.provenance import Source, describe, stated_sources
from perfscope.sources.published.markdown import Grid, parse_markdown

#: Commands that only read; anything else in a marker is refused.
READING = ("analyze", "tflops", "plan", "bubble", "checkpoint", "scaling", "logs", "report")
_READING_REPORTS = ("table", "runs", "environment", "overhead")
_WRITING_OPTIONS = ("-o", "--output", "--plot", "--svg")
_ANSWERED = (0, 3, 4)
_MOST_LINES = 8
_MARKER = b"<!-- perfscope:"
_DEEPEST_HEADING = 6


@dataclass(frozen=True, slots=True)
class StaleCell:
    """A cell that is not what the raw files say.

    Attributes:
        line: Its line in the report.
        row: The first cells of its row.
        column: Its column's heading.
        reported: What the report says.
        rebuilt: What the raw files say.
    """

    line: int
    row: str
    column: str
    reported: str
    rebuilt: str


@dataclass(frozen=True, slots=True)
class BuiltBlock:
    """A block as its raw files say it.

    Attributes:
        block: The block.
        command: Its command, as a person would type it.
        content: What should stand between the markers.
        cells: The cells that differ from it.
        lines: Other differences, as ``- old`` and ``+ new``.
    """

    block: Block
    command: str
    content: str
    cells: tuple[StaleCell, ...]
    lines: tuple[str, ...]

    @property
    def is_stale(self) -> bool:
        """Whether the report says something else."""
        return self.content != self.block.content


@dataclass(frozen=True, slots=True)
class BuiltPage:
    """A report and its blocks."""

    page: Page
    blocks: tuple[BuiltBlock, ...]

    @property
    def stale(self) -> tuple[BuiltBlock, ...]:
        """The blocks that are not what their raw files say."""
        return tuple(block for block in self.blocks if block.is_stale)


class Commits(Enum):
    """Where the commit of a file comes from that has not changed since its block was built."""

    KEPT = "kept"
    LOOKED_UP = "looked up"


def build_pages(path: Path, commits: Commits = Commits.KEPT) -> list[BuiltPage]:
    """Build a report, or every report below a folder; nothing is written.

    Raises:
        SourceError: There is no block, or one cannot be regenerated.
    """
    if not path.exists():
        raise SourceError(path, "does not exist")
    files = _reports_below(path) if path.is_dir() else [path]
    pages = [page for page in map(read_page, files) if page.blocks]
    if not pages:
        hint = "a block begins with <!-- perfscope: COMMAND --> and ends with <!-- /perfscope -->"
        raise SourceError(path, "holds no block to regenerate", hint=hint)
    return [BuiltPage(page, tuple(_build(page, block, commits) for block in page.blocks)) for page in pages]


def _reports_below(folder: Path) -> list[Path]:
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
            text = with_contents(built.page, [block.content for block in built.blocks])
            replace_file(built.page.path, text.encode("utf-8", "surrogateescape"))


def _build(page: Page, block: Block, commits: Commits) -> BuiltBlock:
    where = f"line {block.line}"
    try:
        _refuse_writing(block.words)
        folder, paths = _find_files(page.path.parent.resolve(), block.words)
        text = _keep_sections(_run(block.words, folder), block.sections)
        known = stated_sources(block.content) if commits is Commits.KEPT else {}
        sources = describe(paths, folder, known)
    except PerfscopeError as error:
        raise SourceError(
            page.path, f"{where}: the block cannot be regenerated: {error.problem}", hint=error.hint
        ) from None
    command = "perfscope " + " ".join(_quoted(word) for word in block.words)
    content = f"\n{_below_heading(text, block.level)}\n{_footer(sources, command)}\n\n"
    cells, lines = compare(block, content)
    return BuiltBlock(block, command, content, cells, lines)


def _refuse_writing(words: Sequence[str]) -> None:
    reads = words[0] in READING and (words[0] != "report" or (words[1:2] and words[1] in _READING_REPORTS))
    if not reads:
        raise PerfscopeError(
            f"{' '.join(words[:2])!r} is no command that only reads", hint=f"known: {', '.join(READING)}"
        )
    written = [word for word in words if word.split("=")[0] in _WRITING_OPTIONS]
    if written:
        raise PerfscopeError(f"{written[0]} writes a file", hint="a block holds what a command prints")


def _quoted(word: str) -> str:
    return word if re.fullmatch(r"[\w./:=,%+@-]+", word) else f"'{word}'"


def _find_files(folder: Path, words: Sequence[str]) -> tuple[Path, list[str]]:
    """The folder that the command's paths start from: the report's own, or the nearest one above where they exist."""
    candidates = [word for word in words[1:] if not word.startswith("-") and ("/" in word or "." in word)]
    for start in (folder, *folder.parents):
        found = [word for word in candidates if (start / word).exists()]
        if found:
            return start, found
        if (start / ".git").exists():
            break
    return folder, []


def _run(words: Sequence[str], folder: Path) -> str:
    """What a perfscope command prints, run in a folder.

    Raises:
        PerfscopeError: It failed.
    """
    from perfscope.cli import app

    printed, said = io.StringIO(), io.StringIO()
    code: object = 0
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
        try:
            typer.main.get_command(app).main(list(words), prog_name="perfscope")
        except SystemExit as end:
            code = end.code
    if code not in _ANSWERED:
        reason = " ".join(re.sub(r"[─│╭╮╰╯]", " ", said.getvalue()).split())
        raise PerfscopeError(f"the command ended with {code}: {reason[-300:]}")
    return printed.getvalue()


def _keep_sections(text: str, titles: Sequence[str]) -> str:
    """Keep the sections of these titles, and not the document's own title.

    Raises:
        PerfscopeError: There is no section of a title.
    """
    if not titles:
        return text
    parts = re.split(r"(?m)^(?=## )", text)
    named = {part.splitlines()[0].removeprefix("## ").strip(): part for part in parts[1:]}
    missing = [title for title in titles if title not in named]
    if missing:
        raise PerfscopeError(f"there is no section {missing[0]!r}", hint=f"there are: {', '.join(named)}")
    return "\n".join(named[title].strip() + "\n" for title in titles)


def _below_heading(text: str, level: int) -> str:
    """Put a document's headings below the heading that the block stands under."""

    def deeper(match: re.Match[str]) -> str:
        return "#" * min(_DEEPEST_HEADING, len(match[1]) + level) + " "

    return re.sub(r"(?m)^(#{1,6}) ", deeper, text)


def _footer(sources: Sequence[Source], command: str) -> str:
    files = f"From {', '.join(map(str, sources))} by `{command}`." if sources else f"By `{command}`."
    return f"_{files}_"


def compare(block: Block, content: str) -> tuple[tuple[StaleCell, ...], tuple[str, ...]]:
    """The cells that differ between what a block says and what it should, and the other lines that do."""
    if block.content == content:
        return (), ()
    old, new = parse_markdown(block.content, "old"), parse_markdown(content, "new")
    cells: list[StaleCell] = []
    old_lines: set[int] = set()
    new_lines: set[int] = set()
    for before, after in zip_longest(old.grids, new.grids):
        if before is None or after is None or not _same_shape(before, after):
            continue
        cells.extend(_cells(block, before, after))
        old_lines.update(range(before.line, before.last_line + 1))
        new_lines.update(range(after.line, after.last_line + 1))
    prose_before = [line for number, line in enumerate(old.lines, 1) if number not in old_lines]
    prose_after = [line for number, line in enumerate(new.lines, 1) if number not in new_lines]
    compared = difflib.ndiff(prose_before, prose_after)
    lines = [line.rstrip() for line in compared if line[0] in "+-" and line[2:].strip()]
    return tuple(cells), tuple(lines[:_MOST_LINES])


def _same_shape(before: Grid, after: Grid) -> bool:
    headings = [cell.text for cell in before.headings] == [cell.text for cell in after.headings]
    return headings and len(before.rows) == len(after.rows)


def _cells(block: Block, before: Grid, after: Grid) -> list[StaleCell]:
    found = []
    for line, old_row, new_row in zip(before.rows_lines, before.rows, after.rows, strict=True):
        row = " ".join(cell.text for cell in old_row[:3])
        for heading, old, new in zip(before.headings, old_row, new_row, strict=False):
            if old.text != new.text:
                found.append(StaleCell(block.line + line, row, heading.text, old.text, new.text))
    return found
