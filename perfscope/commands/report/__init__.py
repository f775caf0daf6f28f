"""``perfscope report``: published tables are checked and recomputed, and reports are built from raw files."""

from __future__ import annotations

import typer

from perfscope.commands.report.build import build
from perfscope.commands.report.environment import environment
from perfscope.commands.report.findings import findings
from perfscope.commands.report.mfu import mfu
from perfscope.commands.report.overhead import overhead
from perfscope.commands.report.refresh import refresh
from perfscope.commands.report.runs import runs
from perfscope.commands.report.table import table

app = typer.Typer(help="Check published tables and regenerate reports from raw files.")
for command in (refresh, build, table, runs, environment, overhead, findings, mfu):
    app.command()(command)
