"""The guide on benchmarks names every strategy and option that it speaks of."""

from __future__ import annotations

import re

import typer

from perfscope.bench.settings import OPTION_SETS
from perfscope.cli import app
from perfscope.workloads.strategies import STRATEGIES
from tests.conftest import ROOT

GUIDE = (ROOT / "docs" / "bench.md").read_text()


def test_the_table_names_every_strategy() -> None:
    table = GUIDE.partition("## Strategies")[2].partition("\n\nEach is one")[0]
    named = set(re.findall(r"^\| (.*?) \|", table, re.MULTILINE))
    names = {name for cell in named for name in re.findall(r"`([a-z0-9-]+)`", cell)}
    assert names | {"zero-1", "zero-2"} == set(STRATEGIES)  # `zero-0` to `zero-3`


def test_every_option_that_it_names_exists() -> None:
    command = typer.main.get_command(app).get_command(typer.Context(typer.main.get_command(app)), "bench")  # type: ignore[attr-defined]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert set(re.findall(r"--[a-z][a-z-]+", GUIDE.replace("srun -N 2", ""))) <= known
    assert ",".join(OPTION_SETS) in GUIDE
