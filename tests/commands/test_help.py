"""The help of every command says what each option takes, its unit, and what holds where it is not given."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from perfscope.cli import COMMANDS, app
from tests.conftest import run


def options() -> Iterator[tuple[str, Any]]:
    """Every command's options, with the command's name."""
    group = typer.main.get_command(app)
    context = typer.Context(group)
    for name in COMMANDS:
        command: Any = group.get_command(context, name)  # type: ignore[attr-defined]
        subcommands = getattr(command, "commands", {}) or {"": command}
        for subname, subcommand in subcommands.items():
            for parameter in subcommand.params:
                if parameter.param_type_name == "option":
                    yield f"{name} {subname}".strip(), parameter


def failing(holds: Callable[[Any], object]) -> list[str]:
    """The options that do not keep a rule."""
    return [f"{name} {option.opts[0]}" for name, option in options() if not holds(option)]


def value_type(option: Any) -> Any:
    return option.type_descriptor.annotation


def test_an_option_says_what_it_takes_in_a_sentence() -> None:
    assert not failing(lambda option: option.help and option.help[0].isupper() and option.help.endswith("."))


def test_a_number_or_a_choice_says_what_holds_where_it_is_not_given() -> None:
    def holds(option: Any) -> object:
        shown = isinstance(option.show_default, str) or (option.show_default and option.default is not None)
        return value_type(option) in (bool, str, Path, list[str]) or option.required or shown

    assert not failing(holds)


@pytest.mark.parametrize(("typed", "offered"), [("perfscope tf", "tflops"), ("perfscope analyze --format ", "json")])
def test_the_shell_completes_commands_options_and_choices(typed: str, offered: str, tmp_path: Path) -> None:
    words = typed.split(" ")
    completed = run(
        [Path(sys.executable).with_name("perfscope")],
        tmp_path,
        _PERFSCOPE_COMPLETE="complete_bash",
        COMP_WORDS=typed,
        COMP_CWORD=str(len(words) - 1),
    )
    assert offered in completed.stdout.split()
