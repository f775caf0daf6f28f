"""``perfscope report environment``: the machine and the software of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfscope.commands.options.common import FormatOption
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.report import Column, Json, Report, Section
from perfscope.sources.runs.environment import read_environment

_LINKS = "NV: bonded NVLinks; PIX, PXB, PHB, NODE, SYS: PCIe, in order of distance."


def environment(
    path: Annotated[
        Path, typer.Argument(metavar="RUN_DIR | FILE.json", help="A run, or a JSON file like its run.json.")
    ],
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Print the environment of a run: GPUs and their topology, driver and versions."""
    stated = read_environment(path)
    sections = [Section("Environment", (Column("Component"), Column("Value")), stated.facts)]
    if stated.topology:
        headings, *rows = stated.topology
        sections.append(Section("GPU topology", tuple(Column(name) for name in headings), tuple(rows), (_LINKS,)))
    if stated.command:
        sections.append(Section("Command", notes=(f"`{stated.command}`",)))
    data: dict[str, Json] = {
        "schema": "perfscope/environment/1",
        "results": {"facts": dict(stated.facts), "topology": [list(row) for row in stated.topology]},
    }
    return Outcome(Report(f"Environment of {path}", data, tuple(sections)), format)
