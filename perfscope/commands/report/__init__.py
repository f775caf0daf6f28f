"""``perfscope report``: published tables are checked and recomputed, and reports are built from raw files."""

from __future__ import annotations

import typer

from perfscope.commands.report.build import build
from perfscope.commands.report.refresh import refresh

app = typer.Typer(help="Check published tables and regenerate reports from raw files.")
for command in (refresh, build):
    app.command()(command)
