"""``perfscope profile -- COMMAND``: capture an unmodified training command, and end as it ends."""

from __future__ import annotations

import errno
import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from dataclasses import replace as replace_fields
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from perfscope.commands.options import expand_groups, parse_option
from perfscope.commands.profile.completion import complete
from perfscope.commands.profile.preparation import Prepared, prepare, prepare_plainly
from perfscope.errors import CommandNotFound, UsageError
from perfscope.hooks.config import Config
from perfscope.hooks.reach.attach import find_pynvml
from perfscope.hooks.reach.supervise import Ending, replace_process, run, words_of_script
from perfscope.hooks.selection import DEFAULT_WINDOWS, WindowChoice, parse_ranks, parse_step_optimizer, parse_windows
from perfscope.outcome import Outcome

#: Options after the command's first word are the command's own.
SETTINGS = {"context_settings": {"allow_interspersed_args": False}}

_run_option, _window_option, _watch_option, _event_option = (
    partial(typer.Option, rich_help_panel=panel)
    for panel in (
        "Run",
        "Profiler windows",
        "Stalls and failures",
        "Extra profiler events (they slow windows down)",
    )
)


@dataclass(frozen=True, slots=True)
class WindowOptions:
    """Which steps of which ranks are profiled."""

    steps: Annotated[str, _window_option(help="Training steps to profile, counted from 1, inclusive: 2-4,7-9.")] = (
        DEFAULT_WINDOWS
    )
    ranks: Annotated[str | None, _window_option(help="Ranks to profile, such as 0,4-6.", show_default="all")] = None
    window: Annotated[
        WindowChoice,
        _window_option(
            help="What is recorded on a GPU: operators and kernels, kernels alone (light), or first the one and some "
            "steps later the other (both)."
        ),
    ] = WindowChoice.BOTH
    step_optimizer: Annotated[
        str | None,
        _window_option(
            metavar="N|every",
            help="Which of several optimizers ends a training step: its number in the order in which they first step, "
            "or every one.",
            show_default="the rhythm of their steps decides",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class EventOptions:
    """What torch.profiler records in a window, beside operators and kernels."""

    shapes: Annotated[bool, _event_option("--shapes", help="Input shapes of operators.")] = False
    stack: Annotated[bool, _event_option("--stack", help="Python stacks.")] = False
    memory: Annotated[
        bool, _event_option("--memory", help="Memory allocations, and the history of the GPU's allocator.")
    ] = False
    modules: Annotated[bool, _event_option("--modules", help="The forward pass of every module, with its path.")] = (
        False
    )
    on_oom: Annotated[
        bool,
        _event_option(
            "--on-oom", help="The history of the GPU's allocator from the first step on, written when memory runs out."
        ),
    ] = False


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """What is kept of a training that stalls or fails."""

    watchdog: Annotated[
        bool,
        _watch_option(
            "--watchdog/--no-watchdog",
            help="Keep stacks and collectives of a training that stalls or fails, for `perfscope postmortem`.",
        ),
    ] = True
    stall_seconds: Annotated[
        float,
        _watch_option(
            min=1,
            help="Shortest stall, in seconds, also at least 20 median steps; ten times as long before the second step.",
        ),
    ] = 60.0


@expand_groups
def profile(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND...", help="The training command, unmodified.")
    ] = None,
    run_dir: Annotated[
        Path | None,
        _run_option(
            "-o", "--output", "--run-dir", help="Folder of the run; it must not exist.", show_default="runs/TIME-NAME"
        ),
    ] = None,
    replace: Annotated[
        bool, _run_option("--exec", help="Replace this process (exec); make the report later with `perfscope analyze`.")
    ] = False,
    page: Annotated[
        bool,
        _run_option("--page/--no-page", help="Write `page.html` into the run's folder when the command has ended."),
    ] = True,
    *,
    windows: WindowOptions,
    events: EventOptions,
    nvml_hz: Annotated[
        float,
        typer.Option(
            min=0, max=100, help="NVML samples per second (Hz); 0 disables sampling.", rich_help_panel="GPU sampling"
        ),
    ] = 5.0,
    watch: WatchOptions,
) -> Outcome:
    """Run a training command and capture its steps, a profiler window and NVML samples.

    Standard output, standard error, signals and the exit status are the command's own.
    """
    if not command:
        raise UsageError("no command after --", hint="perfscope profile -- deepspeed train.py")
    executable = _find_executable(command[0])
    config = _configure(windows, events, nvml_hz, watch)
    start = replace_process if replace else run
    prepared = replace_fields(prepare(config, run_dir, command), writes_page=page)
    return _run(start, executable, command, prepared)


def _configure(windows: WindowOptions, events: EventOptions, nvml_hz: float, watch: WatchOptions) -> Config:
    """What to record; ``UsageError`` where an option cannot be read."""
    return Config(
        run_dir="",  # of all options the folder alone may not be possible, and the command runs without it
        windows=parse_option("--steps", parse_windows, windows.steps) or (),
        ranks=parse_option("--ranks", parse_ranks, windows.ranks),
        window=windows.window,
        step_optimizer=parse_option("--step-optimizer", parse_step_optimizer, windows.step_optimizer),
        **asdict(events),
        nvml_hz=nvml_hz,
        nvml_path=find_pynvml(),
        run_id=uuid.uuid4().hex,
        watchdog=watch.watchdog,
        stall_s=watch.stall_seconds,
    )


def _find_executable(program: str) -> str:
    executable = shutil.which(program)
    if executable is None:
        if Path(program).is_file():
            raise UsageError(
                f"{program} is not executable", hint=f"perfscope profile -- python {program}, or make it executable"
            )
        raise CommandNotFound(f"{program}: command not found", hint="nothing was started")
    return executable


def _run(start: Callable[..., Ending], executable: str, command: Sequence[str], prepared: Prepared) -> Outcome:
    """Run the prepared command; without perfscope where its environment has become too large for the system."""
    try:
        ending = start(prepared.command, executable, prepared.environment)
    except OSError as error:
        script = words_of_script(executable, command) if error.errno == errno.ENOEXEC else None
        if script is not None:
            return _run(start, script[0], script, replace_fields(prepared, command=script))
        if error.errno != errno.E2BIG or prepared.run_dir is None:
            raise UsageError(f"{command[0]} cannot be started: {error.strerror}") from None
        shutil.rmtree(prepared.run_dir, ignore_errors=True)
        return _run(start, executable, command, prepare_plainly(command, str(error.strerror)))
    return complete(prepared.run_dir, ending, writes_page=prepared.writes_page)
