"""A group of options is declared once, and typer shows and fills its fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import pytest
import typer
from typer.testing import CliRunner

from perfscope.commands.options import expand_groups
from perfscope.outcome import Outcome


class Degrees(NamedTuple):
    tp: Annotated[int, typer.Option("--tp", "--tensor", help="Tensor-parallel size.", rich_help_panel="Layout")] = 1
    pp: Annotated[int | None, typer.Option(help="Pipeline-parallel size.", show_default="every GPU")] = None


@dataclass(frozen=True, slots=True)
class Job:
    degrees: Degrees
    name: Annotated[str, typer.Option(help="Its name.")]
    resumed: Annotated[bool, typer.Option("--resumed", help="Whether it was resumed.")] = False


@expand_groups
def describe(job: Job, paths: Annotated[list[str] | None, typer.Argument()] = None) -> Outcome:
    """Describe a job."""
    typer.echo(f"{job} {paths}")
    return Outcome()


app = typer.Typer(add_completion=False)
app.command()(describe)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_command_is_called_with_its_groups_filled() -> None:
    assert run("--name", "a", "--tensor", "4", "--resumed", "x", "y") == (
        f"{Job(Degrees(tp=4), name='a', resumed=True)} ['x', 'y']\n"
    )


def test_options_that_are_not_typed_have_the_defaults_of_their_fields() -> None:
    assert run("--name", "a") == f"{Job(Degrees(tp=1, pp=None), name='a', resumed=False)} None\n"


def test_a_field_without_a_default_is_required() -> None:
    result = CliRunner().invoke(app, [])
    assert result.exit_code == 2
    assert "--name" in result.output


def test_the_help_shows_each_option_in_the_panel_of_its_field() -> None:
    output = run("--help")
    assert "Describe a job." in output
    options, layout = output.split("Layout", 1)
    assert "Pipeline-parallel size. [default: (every GPU)]" in options
    assert "--resumed" in options
    assert "--tp,--tensor" in layout
    assert "--pp" not in layout


def test_two_options_of_one_name_are_refused() -> None:
    def describe_twice(job: Job, degrees: Degrees) -> Outcome:
        raise AssertionError(job, degrees)

    with pytest.raises(ValueError, match="duplicate parameter name"):
        expand_groups(describe_twice)
