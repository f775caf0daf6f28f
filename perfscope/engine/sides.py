"""Reads what ``perfscope compare`` compares: runs, traces, logs and saved results, several of them as one side."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec.structs import replace

from perfscope.analyzers.budget import Budget
from perfscope.analyzers.compare.side import (
    Side,
    from_saved,
    join_runs,
    side_of_log,
    side_of_run,
    side_of_traces,
)
from perfscope.analyzers.logs.setup import Overrides
from perfscope.analyzers.logs.summary import summarize_log
from perfscope.constants import KIB
from perfscope.engine.inputs import split_into_runs
from perfscope.engine.run import Analysis, Plan, analyze
from perfscope.errors import SourceError
from perfscope.sources.joblog import find_logs, read_log
from perfscope.sources.joblog.files import is_log
from perfscope.sources.runs.folder import is_run, is_run_at
from perfscope.sources.runs.stored import read_versions_at
from perfscope.sources.stores.location import is_url
from perfscope.sources.traces.files import TRACE_ENDINGS

_OF_RUNS = frozenset(("findings", "steps", "mfu", "energy", "budget"))
_OF_TRACES = frozenset(("budget",))
_SCHEMA = b'"perfscope/'
_SEPARATOR = ","
_ANY = Plan()


def read_side(location: str, plan: Plan = _ANY) -> Side:
    """Read one side: a run, traces, a log, a saved result; or several runs, in a folder or separated by commas.

    Trace files that are separated by commas are of the ranks of one job. ``plan`` says how traces are read. Raises
    SourceError: it does not exist, or is none of these. PerfscopeError: it is saved by another version, or its runs did
    not train the same.
    """
    if not location.strip():
        raise SourceError("''", "names nothing", hint="a side is a run, traces, a log or a saved result")
    if _SEPARATOR in location and not Path(location).exists() and not is_url(location):
        parts = [part for part in location.split(_SEPARATOR) if part]
        if parts and all(_is_trace(Path(part)) for part in parts):  # of the ranks of one job, not several runs
            return _read_traces(parts, plan, name=location)
        return join_runs(location, [_read_part(part, plan) for part in parts])
    return _read_part(location, plan)


def _read_part(location: str, plan: Plan) -> Side:
    path = Path(location)
    if is_url(location):
        runs = [group[0] for group in split_into_runs([location]) if is_run_at(group[0])]
        sides = [_read_run(run, plan) for run in runs]
        if not sides:
            return _read_traces([location], plan, name=location)
        return sides[0] if runs == [location] else join_runs(location, sides)
    if path.is_dir():
        return _read_folder(location, plan)
    if path.is_file() and is_saved(path):
        return read_saved(path)
    if path.is_file() and (is_log(path) or not location.endswith(TRACE_ENDINGS)):
        return _read_log(path)
    return _read_traces([location], plan, name=location)


def _read_folder(location: str, plan: Plan) -> Side:
    path = Path(location)
    if is_run(path):
        return _read_run(location, plan)
    runs = [group[0] for group in split_into_runs([location]) if is_run(Path(group[0]))]
    if runs:
        return join_runs(location, [_read_run(run, plan) for run in runs])
    if any(file.name.endswith(TRACE_ENDINGS) and not is_log(file) for file in path.rglob("*")):
        return _read_traces([location], plan, name=location)
    logs = find_logs([path])
    if not logs:
        raise SourceError(
            location,
            "contains neither a run nor traces nor logs",
            hint="a side is a run, traces, a log or a saved result",
        )
    return join_runs(location, [_read_log(log) for log in logs])


def _read_run(location: str, plan: Plan) -> Side:
    analysis = analyze([location], replace(plan, only=_OF_RUNS))
    assert analysis.run is not None
    return side_of_run(
        location, analysis.run, analysis.results, _reasons(analysis), _versions(location), analysis.damage
    )


def _read_traces(locations: list[str], plan: Plan, *, name: str) -> Side:
    analysis = analyze(locations, replace(plan, only=_OF_TRACES))
    budget = analysis.results.get("budget")
    reason = _reasons(analysis).get("budget", "")
    return side_of_traces(name, budget if isinstance(budget, Budget) else None, reason, analysis.damage)


def _reasons(analysis: Analysis) -> dict[str, str]:
    return {skipped.analyzer: skipped.reason for skipped in analysis.skipped}


def _versions(run: str) -> dict[str, str]:
    try:
        return read_versions_at(run)
    except SourceError:
        return {}  # a run without its run.json is compared without versions


def _read_log(path: Path) -> Side:
    summary = summarize_log(read_log(path), Overrides())
    if summary.status == "unrecognised":
        problem = "is empty" if path.stat().st_size == 0 else "is neither a trace nor a log of a known framework"
        raise SourceError(path, problem, hint="a side is a run, traces, a log or a saved result")
    return side_of_log(str(path), summary)


def _is_trace(path: Path) -> bool:
    return path.is_file() and path.name.endswith(TRACE_ENDINGS) and not is_saved(path) and not is_log(path)


def is_saved(path: Path) -> bool:
    """Whether a file is one that perfscope saved: an analysis, a baseline or a comparison."""
    with path.open("rb") as file:
        head = file.read(KIB)  # the schema is the first key
    return head.lstrip()[:1] == b"{" and _SCHEMA in head


def read_saved(path: Path) -> Side:
    """Read a baseline.

    Raises SourceError: it is not complete JSON. PerfscopeError: it is of another schema or version, or damaged.
    """
    try:
        data = msgspec.json.decode(path.read_bytes())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise SourceError(path, "is not complete JSON", hint="save it again") from None
    return from_saved(str(path), data if isinstance(data, dict) else {})
