"""Recompute the derived cells of a markdown file in place; every other byte stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfscope.analyzers.published.check import CheckedTables, check_tables
from perfscope.analyzers.published.contradictions import Contradiction, find_contradictions
from perfscope.analyzers.published.conventions import leave_conventions
from perfscope.analyzers.published.verdicts import CheckedCell, Verdict
from perfscope.errors import SourceError
from perfscope.files import replace_file
from perfscope.sources.published.markdown import Document
from perfscope.sources.published.tables import PublishedFile, read_published
from perfscope.tables.published import Constant, Quantity


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """A markdown file whose tables were recomputed.

    Attributes:
        file: Its tables.
        document: The text around them.
        tables: The recomputed cells of its tables.
        contradictions: Their rows that contradict themselves.
    """

    file: PublishedFile
    document: Document
    tables: CheckedTables
    contradictions: tuple[Contradiction, ...]

    @property
    def differs(self) -> bool:
        """Whether a cell cannot be right, or a row contradicts itself."""
        return bool(self.tables.unfounded or self.contradictions)


def check_file(path: Path, constants: Mapping[Quantity, Constant], peak_tflops: float | None) -> CheckedFile:
    """Recompute the cells of a file; nothing is written.

    Raises:
        SourceError: The file cannot be read, or contains no table that can be recomputed.
    """
    file = read_published(path, constants)
    if not file.tables or file.document is None:
        raise SourceError(path, "contains no table that can be recomputed", hint=_explain_unread(file))
    tables = leave_conventions(check_tables(file.tables, peak_tflops))
    return CheckedFile(file, file.document, tables, find_contradictions(file.tables))


def _explain_unread(file: PublishedFile) -> str:
    if file.document is None:
        return "refresh changes markdown; a block `report table` reads CSV"
    return (
        "; ".join(file.unread)
        or "a table needs a column such as TFLOPs, speed-up or efficiency, and what it is computed from"
    )


def write_cells(path: Path, checked: CheckedFile) -> None:
    """Replace the cells of a file that cannot be right by their recomputed values.

    Raises:
        SourceError: The file cannot be written.
    """
    if checked.tables.unfounded:
        content = replace_cells(checked.document, checked.tables.unfounded)
        replace_file(path, content.encode("utf-8", "surrogateescape"))


def replace_cells(document: Document, cells: Sequence[CheckedCell]) -> str:
    """The document's text with the recomputed digits instead of the published ones; an empty cell keeps its width."""
    lines = list(document.lines)
    for cell in sorted(cells, key=lambda cell: (cell.span.line, cell.span.start), reverse=True):
        line = lines[cell.span.line - 1]
        width = cell.span.end - cell.span.start
        text = cell.text.rjust(width) if cell.verdict is Verdict.MISSING else cell.text
        lines[cell.span.line - 1] = line[: cell.span.start] + text + line[cell.span.end :]
    return "".join(lines)
