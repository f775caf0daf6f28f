"""``perfscope profile -- COMMAND``: capture an unmodified training command, and end as it ends."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from perfscope import wire
from perfscope.commands.options.groups import expand_groups
from perfscope.errors import CommandNotFound, UsageError
from perfscope.hooks.config import Config
from perfscope.hooks.facts.describe import describe_machine, describe_run
from perfscope.hooks.profiler.compress import compress
from perfscope.hooks.reach import launch
from perfscope.hooks.reach.attach import find_pynvml
from perfscope.hooks.reach.supervise import Ending, run
from perfscope.hooks.recorder import replace_file
from perfscope.hooks.selection import DEFAULT_WINDOWS, WindowChoice, parse_ranks, parse_step_optimizer, parse_windows
from perfscope.outcome import Outcome
from perfscope.renderers.summary import summarize

#: Options after the command's first word are the command's own.
SETTINGS = {"context_settings": {"allow_interspersed_args": False}}

_RUN_PANEL = "Run"
_WINDOW_PANEL = "Profiler windows"
_EVENT_PANEL = "Extra profiler events (they slow windows down)"
_LONGEST_NAME = 40
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class WindowOptions:
    """Which steps of which ranks are profiled."""

    steps: Annotated[
        str,
        typer.Option(
            help="Training steps to profile, counted from 1, inclusive: 2-4,7-9.", rich_help_panel=_WINDOW_PANEL
        ),
    ] = DEFAULT_WINDOWS
    ranks: Annotated[
        str | None,
        typer.Option(help="Ranks to profile, such as 0,4-6.", show_default="all", rich_help_panel=_WINDOW_PANEL),
    ] = None
    window: Annotated[
        WindowChoice,
        typer.Option(
            help="What is recorded on a GPU: operators and kernels, kernels alone (light), or first the one and some "
            "steps later the other (both).",
            rich_help_panel=_WINDOW_PANEL,
        ),
    ] = WindowChoice.BOTH
    step_optimizer: Annotated[
        str | None,
        typer.Option(
            metavar="N|every",
            help="Which of several optimizers ends a training step: its number in the order in which they first step, "
            "or every one.",
            show_default="the rhythm of their steps decides",
            rich_help_panel=_WINDOW_PANEL,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class EventOptions:
    """What torch.profiler records in a window, beside operators and kernels."""

    shapes: Annotated[
        bool, typer.Option("--shapes", help="Input shapes of operators.", rich_help_panel=_EVENT_PANEL)
    ] = False
    stack: Annotated[bool, typer.Option("--stack", help="Python stacks.", rich_help_panel=_EVENT_PANEL)] = False
    memory: Annotated[bool, typer.Option("--memory", help="Memory allocations.", rich_help_panel=_EVENT_PANEL)] = False
    flops: Annotated[
        bool, typer.Option("--flops", help="FLOPs of each operator, estimated by torch.", rich_help_panel=_EVENT_PANEL)
    ] = False
    modules: Annotated[
        bool,
        typer.Option(
            "--modules", help="The forward pass of every module, with its path.", rich_help_panel=_EVENT_PANEL
        ),
    ] = False


@expand_groups
def profile(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND...", help="The training command, unmodified.")
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--run-dir",
            help="Folder of the run; it must not exist.",
            show_default="runs/TIME-NAME",
            rich_help_panel=_RUN_PANEL,
        ),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option(
            "--exec",
            help="Replace this process (exec); make the report later with `perfscope analyze`.",
            rich_help_panel=_RUN_PANEL,
        ),
    ] = False,
    *,
    windows: WindowOptions,
    events: EventOptions,
    nvml_hz: Annotated[
        float,
        typer.Option(
            min=0, max=100, help="NVML samples per second (Hz); 0 disables sampling.", rich_help_panel="GPU sampling"
        ),
    ] = 5.0,
) -> Outcome:
    """Run a training command and capture its steps, a profiler window and NVML samples.

    Standard output, standard error, signals and the exit status are the command's own.
    """
    if not command:
        raise UsageError("no command after --", hint="perfscope profile -- deepspeed train.py")
    executable = _find_executable(command[0])
    config = Config(
        run_dir=str((run_dir or _default_run_dir(command)).absolute()),
        windows=_parse_option("--steps", parse_windows, windows.steps),
        ranks=None if windows.ranks is None else _parse_option("--ranks", parse_ranks, windows.ranks),
        window=windows.window,
        step_optimizer=None
        if windows.step_optimizer is None
        else _parse_option("--step-optimizer", parse_step_optimizer, windows.step_optimizer),
        **asdict(events),
        nvml_hz=nvml_hz,
        nvml_path=find_pynvml(),
        run_id=uuid.uuid4().hex,
    )
    environment = _prepare(config, command)
    forwarding_command = launch.add_forwarding(command)
    if replace:
        os.execve(executable, forwarding_command, environment)
    try:
        ending = run(forwarding_command, executable, environment)
    except OSError as error:
        raise UsageError(f"{command[0]} cannot be started: {error.strerror}") from None
    return _finish(config, ending)


def _parse_option(option: str, parse: Callable[[str], _T], text: str) -> _T:
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


def _find_executable(program: str) -> str:
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
    """Create the run's folder, describe the run, and build the command's environment.

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
    for obstacle in launch.find_obstacles(command, os.environ):
        sys.stderr.write(f"perfscope: warning: {obstacle}\n")
    return launch.build_environment(config, boot, os.environ)


def _finish(config: Config, ending: Ending) -> Outcome:
    """Record how the command ended, and summarize the run; nothing here changes how the command ended."""
    run_dir = Path(config.run_dir)
    lines = [f"the command {ending}"]
    try:
        description = json.loads((run_dir / wire.RUN_FILE).read_bytes())
        description |= {"ended_ns": time.time_ns(), "exit_status": str(ending)}
        replace_file(str(run_dir / wire.RUN_FILE), wire.to_file(description))
        for trace in (run_dir / wire.TRACES_FOLDER).rglob(f"[!.]*{wire.TRACE_SUFFIX}"):  # hidden ones are unfinished
            compress(str(trace))
        shutil.rmtree(run_dir / wire.BOOT_FOLDER, ignore_errors=True)
    except (OSError, ValueError) as error:
        lines.append(f"{run_dir} is incomplete: {error}")
    with suppress(KeyboardInterrupt):
        lines += _summarize_run(run_dir)
    return Outcome(notes=tuple(lines), exit_code=ending.code, signal=ending.signal)


def _summarize_run(run_dir: Path) -> list[str]:
    """Analyze the run in a process of its own, so that a failure there does not change how the command ended."""
    process = subprocess.run(
        [sys.executable, "-m", "perfscope", "--quiet", "analyze", "--format", "json", str(run_dir)],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        analysis = json.loads(process.stdout)
    except ValueError:
        reason = (process.stderr.strip() or "no output").splitlines()[-1]
        return [f"the run could not be summarised: {reason}", f"run: {_shorten_path(run_dir)}"]
    return [*summarize(analysis), f"run: {_shorten_path(run_dir)}", *_list_viewers(run_dir)]


def _list_viewers(run_dir: Path) -> list[str]:
    lines = [f"report: perfscope analyze {_quote_path(run_dir)}"]
    traces = list((run_dir / wire.TRACES_FOLDER).rglob(f"[!.]*{wire.TRACE_SUFFIX}*"))
    if traces:
        most_to_see = min(traces, key=lambda trace: (len(trace.parts), trace))  # light windows are in a folder below
        lines += [
            f"timeline: open {_shorten_path(most_to_see)} at https://ui.perfetto.dev",
            f"TensorBoard: tensorboard --logdir {_quote_path(run_dir / wire.TRACES_FOLDER)} (with torch-tb-profiler)",
        ]
    return lines


def _quote_path(path: Path) -> str:
    """A path for a command that a reader copies into a shell."""
    return shlex.quote(_shorten_path(path))


def _shorten_path(path: Path) -> str:
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
