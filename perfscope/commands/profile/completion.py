"""What is done when the command has ended: its end is recorded, the run is summarized.

Nothing here changes how the command ended: not a failure, not a signal, not a Ctrl-C of a user who is in a hurry.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from isal import igzip

from perfscope import wire
from perfscope.constants import MIB
from perfscope.hooks.guard import call_safely, value_or_none
from perfscope.hooks.reach.supervise import Ending
from perfscope.hooks.record_files import replace_file
from perfscope.outcome import Outcome
from perfscope.renderers.summary import summarize
from perfscope.report import Report
from perfscope.wire.memory import MEMORY_FOLDER, MEMORY_SUFFIX
from perfscope.wire.records import to_file
from perfscope.wire.traces import STORE_VARIABLE

_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
#: The folder that holds perfscope: an editable installation is found by a hook of site, which does not run there.
_PARENT = str(Path(__file__).resolve().parents[3])
#: The path is this process's, in which nothing of the user's comes first; the environment's variables do not count.
_ANALYZE = "import sys; sys.path[:] = {path!r}; from perfscope.cli import main; main()"


class _Summary(NamedTuple):
    """The report of a run, and the lines in its place where standard output is no terminal."""

    report: Report | None
    lines: tuple[str, ...]
    problems: tuple[str, ...] = ()


def complete(run_dir: Path | None, ending: Ending, *, writes_page: bool) -> Outcome:
    """Record how the command ended, and summarize the run, where there is one, with its page or without.

    On a terminal the summary is the screen of `perfscope analyze`.
    """
    lines: list[str] = []
    summary: _Summary | None = None
    if run_dir is not None:
        lines += [f"the command {ending}"] if ending.code or ending.signal else []
        for number in _ENDING_SIGNALS:
            signal.signal(number, signal.default_int_handler)
        with suppress(KeyboardInterrupt):
            _, error = call_safely(lambda: _record_end(run_dir, ending))
            lines += [] if error is None else [f"{run_dir} is incomplete: {error}"]
            summary, error = call_safely(lambda: _summarize_run(run_dir, writes_page=writes_page))
            if summary is None:
                lines += [f"the run could not be summarised: {error}", f"run: {_shorten_path(run_dir)}"]
            else:
                lines += summary.problems
        for number in _ENDING_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
    report, following = (None, ()) if summary is None else (summary.report, summary.lines)
    return Outcome(report, None, notes=tuple(lines), summary=following, exit_code=ending.code, signal=ending.signal)


def _record_end(run_dir: Path, ending: Ending) -> None:
    try:
        description = json.loads((run_dir / wire.RUN_FILE).read_bytes())
        description |= {"ended_ns": time.time_ns(), "exit_status": str(ending)}
        replace_file(str(run_dir / wire.RUN_FILE), to_file(description))
        compress_run(run_dir)
    finally:
        shutil.rmtree(run_dir / wire.BOOT_FOLDER, ignore_errors=True)


def _summarize_run(run_dir: Path, *, writes_page: bool) -> _Summary:
    """Analyze the run, for its page where it has one; without it where that is not possible."""
    shown, page, problems = _shorten_path(run_dir), "", []
    answer = None
    if writes_page:
        answer, problem = _ask("export", "--output", f"{shown}/{wire.PAGE_FILE}", "--", shown)
        problems += [] if answer else [f"the page could not be written: {problem}"]
        page = f"{shown}/{wire.PAGE_FILE}" if answer else ""
    analysis = answer["analysis"] if answer else None
    if analysis is None:
        analysis, problem = _ask("analyze", "--", shown)
        problems += [] if analysis else [f"the run could not be summarised: {problem}"]
    more = f"everything: perfscope analyze {shlex.quote(shown)}"
    end = (f"run: {shown}", *([f"page: {page}"] if page else []), more)
    if analysis is None:
        return _Summary(None, end, tuple(problems))
    command = json.loads((run_dir / wire.RUN_FILE).read_bytes())["command"]
    report = Report(f"Where the time went: {shlex.join(command)}", analysis, (), tuple(analysis["warnings"]), page)
    return _Summary(report, (*summarize(analysis), *end), tuple(problems))


def _ask(command: str, *words: str) -> tuple[dict[str, Any] | None, str]:
    """The JSON of a command of ours, or None and the reason; the process has neither the user's path nor an input."""
    arguments = ["--quiet", command, "--format", "json", *words]
    flags = ["-I", "-S", *(["-B"] if sys.dont_write_bytecode or sys.pycache_prefix else [])]
    process = subprocess.run(
        [sys.executable, *flags, "-c", _ANALYZE.format(path=[*sys.path, _PARENT]), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, STORE_VARIABLE: "1"},  # what it measures stands beside the traces from now on
    )
    try:
        return json.loads(process.stdout), ""
    except ValueError:
        return None, (process.stderr.strip() or "no output").splitlines()[-1]


def _shorten_path(path: Path) -> str:
    folder = value_or_none(Path.cwd)
    return str(path.relative_to(folder) if folder is not None and path.is_relative_to(folder) else path)


def compress_run(run_dir: Path) -> None:
    """Compress all traces and histories of memory.

    No process does it during training: it would be a child of the training process, which that may wait for.
    """
    # Hidden traces are unfinished.
    plain = [*(run_dir / wire.TRACES_FOLDER).rglob(f"[!.]*{wire.TRACE_SUFFIX}")]
    plain += (run_dir / MEMORY_FOLDER).glob(f"[!.]*{MEMORY_SUFFIX}")
    pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
    try:
        list(pool.map(compress, plain))
    finally:
        pool.shutdown(cancel_futures=True)  # after Ctrl-C the rest stays plain


def compress(path: Path) -> None:
    """Replace a file by its .gz, atomically; one that cannot be compressed stays plain, which readers accept."""
    unfinished = path.with_name(f"{path.name}.gz.tmp")
    try:
        with path.open("rb") as source, igzip.open(unfinished, "wb") as target:
            shutil.copyfileobj(source, target, MIB)
        unfinished.replace(f"{path}.gz")
        path.unlink()
    except OSError:
        unfinished.unlink(missing_ok=True)
