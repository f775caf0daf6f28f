"""``perfscope profile -- COMMAND``: capture an unmodified training command, and end as it ends."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from perfscope import wire
from perfscope.errors import CommandNotFound, UsageError
from perfscope.hooks.config import Config
from perfscope.hooks.facts.describe import describe_machine, describe_run
from perfscope.hooks.profiler.compress import compress
from perfscope.hooks.reach import attaching, launch
from perfscope.hooks.reach.supervise import Ending, run
from perfscope.hooks.recorder import replace_file
from perfscope.hooks.selection import DEFAULT_WINDOWS, parse_ranks, parse_windows
from perfscope.outcome import Outcome
from perfscope.renderers.summary import summarize

SETTINGS: dict[str, Any] = {"context_settings": {"allow_interspersed_args": False}}

_LONGEST_NAME = 40
_T = TypeVar("_T")


def profile(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND...", help="The training command, unmodified.")
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option("-o", "--run-dir", help="The run's folder.  [default: runs/TIME-NAME]")
    ] = None,
    steps: Annotated[str, typer.Option(help="Training steps to profile, from 1 and inclusive.")] = DEFAULT_WINDOWS,
    ranks: Annotated[str | None, typer.Option(help="Ranks to profile, such as 0,4-6.  [default: all]")] = None,
    shapes: Annotated[bool, typer.Option("--shapes", help="Record the operators' input shapes.")] = False,
    stack: Annotated[bool, typer.Option("--stack", help="Record Python stacks.")] = False,
    memory: Annotated[bool, typer.Option("--memory", help="Record allocations.")] = False,
    flops: Annotated[bool, typer.Option("--flops", help="Let torch estimate the operators' FLOPs.")] = False,
    modules: Annotated[bool, typer.Option("--modules", help="Mark every forward of a module with its name.")] = False,
    nvml_hz: Annotated[float, typer.Option(min=0, max=100, help="NVML samples a second; 0 takes none.")] = 5.0,
    replace: Annotated[
        bool, typer.Option("--exec", help="Become the command; make the report later with `perfscope analyze`.")
    ] = False,
) -> Outcome:
    """Run a training command and capture its steps, a profiler window and NVML samples.

    Standard output, standard error, signals and the exit code are the command's own.
    """
    if not command:
        raise UsageError("no command after --", hint="perfscope profile -- deepspeed train.py")
    executable = _find(command[0])
    config = Config(
        run_dir=str((run_dir or _default_run_dir(command)).absolute()),
        windows=_parsed("--steps", parse_windows, steps),
        ranks=None if ranks is None else _parsed("--ranks", parse_ranks, ranks),
        shapes=shapes,
        stack=stack,
        memory=memory,
        flops=flops,
        modules=modules,
        nvml_hz=nvml_hz,
        nvml_path=attaching.find_pynvml(),
        run_id=uuid.uuid4().hex,
    )
    environment = _prepare(config, command)
    started = launch.forwarding(command)
    if replace:
        os.execve(executable, started, environment)
    try:
        ending = run(started, executable, environment)
    except OSError as error:
        raise UsageError(f"{command[0]} cannot be started: {error.strerror}") from None
    return _end(config, ending)


def _parsed(option: str, parse: Callable[[str], _T], text: str) -> _T:
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


def _find(program: str) -> str:
    executable = shutil.which(program)
    if executable is None:
        if Path(program).is_file():
            raise UsageError(
                f"{program} is not executable", hint=f"perfscope profile -- python {program}, or make it executable"
            )
        raise CommandNotFound(f"{program}: command not found", hint="nothing was started")
    return executable


def _default_run_dir(command: Sequence[str]) -> Path:
    """``runs/TIME-NAME``, named after the script; numbered where that exists."""
    scripts = [word for word in command if word.endswith(".py")]
    name = Path(scripts[0] if scripts else command[0]).stem
    safe = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in name)[:_LONGEST_NAME]
    first = Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{safe}"
    candidate, number = first, 2
    while candidate.exists():
        candidate, number = first.with_name(f"{first.name}-{number}"), number + 1
    return candidate


def _prepare(config: Config, command: Sequence[str]) -> dict[str, str]:
    """Make the run's folder, describe the run, and build the command's environment.

    Raises:
        UsageError: The folder exists or cannot be written.
    """
    try:
        boot = launch.prepare(config)
        description = {**describe_run(command, os.environ), **describe_machine(), "run_id": config.run_id}
        replace_file(str(Path(config.run_dir) / wire.RUN_FILE), wire.to_file(description))
    except FileExistsError:
        raise UsageError(
            f"{config.run_dir} exists already", hint="name another folder with -o; nothing was started"
        ) from None
    except OSError as error:
        raise UsageError(f"{config.run_dir} cannot be written: {error.strerror}", hint="nothing was started") from None
    for doubt in launch.doubts(command, os.environ):
        sys.stderr.write(f"perfscope: warning: {doubt}\n")
    return launch.environment(config, boot, os.environ)


def _end(config: Config, ending: Ending) -> Outcome:
    """Note how the command ended, and summarise what was captured; nothing here changes how it ended."""
    run_dir = Path(config.run_dir)
    lines = [f"the command {ending}"]
    try:
        description = json.loads((run_dir / wire.RUN_FILE).read_bytes())
        ended = {**description, "ended_ns": time.time_ns(), "exit_status": str(ending)}
        replace_file(str(run_dir / wire.RUN_FILE), wire.to_file(ended))
        for trace in (run_dir / wire.TRACES_FOLDER).glob(f"[!.]*{wire.TRACE_SUFFIX}"):  # not half a trace
            compress(str(trace))
        shutil.rmtree(run_dir / wire.BOOT_FOLDER, ignore_errors=True)
    except (OSError, ValueError) as error:
        lines.append(f"{run_dir} is incomplete: {error}")
    with suppress(KeyboardInterrupt):
        lines += _summary(run_dir)
    return Outcome(notes=tuple(lines), exit_code=ending.code, signal=ending.signal)


def _summary(run_dir: Path) -> list[str]:
    """The analysis in a process of its own, so that whatever happens to it the command's own end is passed on."""
    answer = subprocess.run(
        [sys.executable, "-m", "perfscope", "--quiet", "analyze", "--format", "json", str(run_dir)],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        analysis = json.loads(answer.stdout)
    except ValueError:
        reason = (answer.stderr.strip() or "no answer").splitlines()[-1]
        return [f"the run could not be summarised: {reason}", f"run: {_short(run_dir)}"]
    return [*summarize(analysis), f"run: {_short(run_dir)}", *_how_to_open(run_dir)]


def _how_to_open(run_dir: Path) -> list[str]:
    lines = [f"report: perfscope analyze {_short(run_dir)}"]
    traces = sorted((run_dir / wire.TRACES_FOLDER).glob(f"[!.]*{wire.TRACE_SUFFIX}*"))
    if traces:
        lines += [
            f"timeline: open {_short(traces[0])} at https://ui.perfetto.dev",
            f"TensorBoard: tensorboard --logdir {_short(run_dir / wire.TRACES_FOLDER)} (with torch-tb-profiler)",
        ]
    return lines


def _short(path: Path) -> str:
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
