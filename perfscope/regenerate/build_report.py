"""The report of ``perfscope report build``: which blocks of which reports differ from their raw files."""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.regenerate.build import BuiltBlock, BuiltPage
from perfscope.report import Column, Json, Report, Section
from perfscope.units import format_count


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
