"""What is done before the command starts: the run's folder, a description of the machine, the environment.

Whatever fails here, the command runs: without perfscope, and with one line that says why. Only what was typed and
cannot be right is an error, as for any command.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from perfscope import wire
from perfscope.errors import UsageError
from perfscope.hooks.config import Config
from perfscope.hooks.facts.describe import describe_machine, describe_run
from perfscope.hooks.guard import call_safely, value_or_none
from perfscope.hooks.messages import write_message
from perfscope.hooks.reach import launch
from perfscope.hooks.record_files import replace_file
from perfscope.wire.records import to_file

#: A typed folder that cannot be created for these reasons was typed wrong.
_WRONG_FOLDER = (errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.EILSEQ)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A command that is ready to run; without a folder of the run it runs without perfscope."""

    command: list[str]
    environment: dict[str, str]
    run_dir: Path | None = None
    writes_page: bool = False


def prepare(config: Config, typed_run_dir: Path | None, command: Sequence[str]) -> Prepared:
    """Describe the run in its folder, and build the environment; ``UsageError`` where the typed folder is wrong."""
    prepared, error = call_safely(lambda: _prepare(config, typed_run_dir, command))
    if isinstance(error, UsageError):
        raise error
    reason = f"its folder cannot be written: {error.strerror}" if isinstance(error, OSError) else str(error)
    return prepared or prepare_plainly(command, reason)


def prepare_plainly(command: Sequence[str], reason: str) -> Prepared:
    """Let the command run without perfscope, and say why."""
    write_message(f"the command runs without perfscope: {reason}")
    return Prepared(list(command), dict(os.environ))


def _prepare(config: Config, typed_run_dir: Path | None, command: Sequence[str]) -> Prepared:
    if typed_run_dir is None:
        config, boot = _create_default_folder(config, command)
    else:
        config = replace(config, run_dir=str(typed_run_dir.absolute()))
        boot = _create_typed_folder(config)
    facts = describe_run(command, os.environ, config.windows, config.recorded)
    description = {**facts, **describe_machine(), "run_id": config.run_id}
    replace_file(str(Path(config.run_dir) / wire.RUN_FILE), to_file(description))
    for obstacle in value_or_none(lambda: launch.find_obstacles(command, os.environ)) or ():
        write_message(f"warning: {obstacle}")
    return Prepared(
        launch.add_forwarding(command), launch.build_environment(config, boot, os.environ), Path(config.run_dir)
    )


def _create_typed_folder(config: Config) -> Path:
    try:
        return _create_folder(config)
    except FileExistsError:
        hint = "name another folder with -o; nothing was started"
        raise UsageError(f"{config.run_dir} exists already", hint=hint) from None
    except OSError as error:
        if error.errno not in _WRONG_FOLDER:
            raise
        problem = f"{config.run_dir} cannot be written: {error.strerror}"
        raise UsageError(problem, hint="nothing was started") from None


def _create_default_folder(config: Config, command: Sequence[str]) -> tuple[Config, Path]:
    """Create ``runs/TIME-NAME``, named after the script; numbered where that exists."""
    scripts = [word for word in command if word.endswith(".py")]
    name = Path(scripts[0] if scripts else command[0]).stem
    safe = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in name)
    first = Path(wire.RUNS_FOLDER).absolute() / f"{time.strftime('%Y%m%d-%H%M%S')}-{safe[:40]}"
    number = 1
    while True:
        folder = first if number == 1 else first.with_name(f"{first.name}-{number}")
        numbered = replace(config, run_dir=str(folder))
        try:
            return numbered, _create_folder(numbered)
        except FileExistsError:  # another command may have started in the same second
            number += 1


def _create_folder(config: Config) -> Path:
    """Create the run's folder with what the ranks load at their start, or nothing: ``OSError``."""
    try:
        return launch.prepare(config)
    except FileExistsError:
        raise
    except BaseException:
        shutil.rmtree(config.run_dir, ignore_errors=True)
        with suppress(OSError):
            Path(config.run_dir).parent.rmdir()  # where it was created for this run, and is empty
        raise
