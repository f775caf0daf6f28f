"""``perfscope collect``: one run from the parts that hosts without a shared file system hold."""

from __future__ import annotations

import re
import shlex
import shutil
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from perfscope import wire
from perfscope.collecting.agreement import (
    Clock,
    PartFacts,
    compare_clocks,
    doubts_about,
    missing_ranks,
    read_facts,
    require_one_process_a_time,
    require_one_run,
)
from perfscope.collecting.fetching import Part, Unreachable, fetch, part_of
from perfscope.collecting.placing import carry_out, plan_placing
from perfscope.collecting.runs import place_descriptions
from perfscope.commands.options.common import FormatOption
from perfscope.errors import ExitCode, UsageError
from perfscope.files import replace_file
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.report import Cell, Column, Json, Report, Section
from perfscope.units import format_ranges

SCHEMA = "perfscope/collected/1"
_STAGING = ".collect"


@dataclass(frozen=True, slots=True)
class Collected:
    """What became of one part.

    Attributes:
        name: The part.
        facts: What it says about itself; absent where it could not be had.
        copied: Files that were copied now.
        copied_bytes: Their size.
        problem: Why it could not be had.
    """

    name: str
    facts: PartFacts | None = None
    copied: int = 0
    copied_bytes: int = 0
    problem: str | None = None


def collect(
    parts: Annotated[list[str], typer.Argument(metavar="PART...", help="Folders, or HOST:PATH over ssh.")],
    run_dir: Annotated[Path, typer.Option("-o", "--run-dir", help="The whole run's folder, new or to be added to.")],
    ssh: Annotated[str | None, typer.Option(help='How to reach other hosts, such as "ssh -p 2222".')] = None,
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Bring the parts of a run together into one folder, from other folders and other hosts.

    A new folder appears when everything is in it. What was interrupted goes on where it stopped when the same command
    is given again; a file that is there is never replaced by a different one.
    """
    chosen = [part_of(name, shlex.split(ssh) if ssh else ()) for name in dict.fromkeys(parts)]
    target = run_dir.absolute()
    if any(Path(part.name).absolute() == target for part in chosen):
        raise UsageError(
            f"{run_dir} is both a part and the whole run", hint="leave it out of the parts: it is added to"
        )
    work = target if target.exists() else target.with_name(f".{target.name}.collecting")
    work.mkdir(parents=True, exist_ok=True)
    collected, staged = _fetch_all(chosen, work)
    if not staged and not (work / wire.RUN_FILE).exists() and not (work / wire.RANKS_FOLDER).is_dir():
        problems = "; ".join(one.problem for one in collected if one.problem)
        raise Unreachable(f"no part could be had: {problems}", hint="the same command goes on where it stopped")
    notes = _merge(collected, staged, work)
    if work != target:
        work.rename(target)
    report = _report(collected, read_facts(str(run_dir), target), notes, run_dir)
    return Outcome(
        report,
        format,
        notes=tuple(f"warning: {line}" for line in report.warnings),
        exit_code=ExitCode.DAMAGED_INPUT if report.warnings else ExitCode.OK,
    )


def _fetch_all(parts: list[Part], work: Path) -> tuple[list[Collected], list[Path]]:
    """Copy every part beside the run; one that cannot be had does not keep the others."""
    there = [path.relative_to(work).as_posix() for path in (work / wire.TRACES_FOLDER).glob("*")]
    there += [name.removesuffix(".gz") for name in there]
    collected, staged = [], []
    for part in parts:
        folder = work / _STAGING / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', part.name)}-{zlib.crc32(part.name.encode()):08x}"
        try:
            copied, size = fetch(part, folder, there)
        except Unreachable as error:
            collected.append(Collected(part.name, problem=error.problem))
            continue
        staged.append(folder)
        collected.append(Collected(part.name, read_facts(part.name, folder), copied, size))
    return collected, staged


def _merge(collected: list[Collected], staged: list[Path], work: Path) -> list[str]:
    """Put every part in its place, after a check of all of them.

    Raises:
        SourceError: They are not of one run, or contradict each other; nothing was put anywhere.
    """
    held = read_facts(work.name, work)
    facts = [one.facts for one in collected if one.facts is not None]
    notes = require_one_run([*([held] if held.processes or held.ids else []), *facts])
    processes = {(one.record.rank, one.identity): one for part in (held, *facts) for one in part.processes}
    require_one_process_a_time(list(processes.values()))
    for folder in staged:
        plan_placing(folder, work)
    place_descriptions(staged, work, list(processes.values()))
    for folder in staged:
        carry_out(plan_placing(folder, work))
    if all(one.problem is None for one in collected):
        shutil.rmtree(work / _STAGING, ignore_errors=True)
    return notes


def _report(collected: list[Collected], whole: PartFacts, notes: list[str], run_dir: Path) -> Report:
    clocks = compare_clocks(whole.processes)
    missing = missing_ranks(whole.processes)
    warnings = [*(one.problem for one in collected if one.problem), *notes, *doubts_about(clocks, whole.processes)]
    if missing:
        size = max(process.record.world_size for process in whole.processes)
        warnings.append(f"{len(missing)} of {size} ranks are missing: {format_ranges(missing)}")
    data: dict[str, Json] = {
        "schema": SCHEMA,
        "run_dir": str(run_dir),
        "ranks": sorted({process.record.rank for process in whole.processes}),
        "missing_ranks": missing,
        "parts": [
            {
                "part": one.name,
                "hosts": _hosts(one.facts),
                "ranks": _ranks(one.facts),
                "copied_files": one.copied,
                "copied_bytes": one.copied_bytes,
                "problem": one.problem,
            }
            for one in collected
        ],
        "clocks": [{"host": clock.host, "ahead_s": clock.ahead_s, "steps": clock.steps} for clock in clocks],
    }
    replace_file(run_dir.absolute() / wire.COLLECTED_FILE, wire.to_file(dict(data)))
    return Report(f"Run {run_dir}", data, tuple(_sections(collected, clocks, run_dir)), tuple(warnings))


def _sections(collected: list[Collected], clocks: tuple[Clock, ...], run_dir: Path) -> list[Section]:
    rows: list[tuple[Cell, ...]] = [
        (
            one.name,
            ", ".join(_hosts(one.facts)) or None,
            format_ranges(_ranks(one.facts)) or None,
            one.copied,
            one.copied_bytes / 1e6,
        )
        for one in collected
    ]
    columns = (Column("Part"), Column("Host"), Column("Ranks"), Column("Files copied"), Column("MB", 3))
    sections = [Section("Parts", columns, tuple(rows), notes=(f"`perfscope analyze {run_dir}` reads the whole run.",))]
    if clocks:
        sections.append(
            Section(
                "Clocks",
                (Column("Host"), Column("Ahead (ms)", 3), Column("Common steps")),
                tuple((clock.host, clock.ahead_s * 1e3, clock.steps) for clock in clocks),
                notes=("Against the lowest rank's host, by the ends of steps, which all ranks end nearly together.",),
            )
        )
    return sections


def _hosts(facts: PartFacts | None) -> list[str]:
    return sorted({process.record.host for process in facts.processes}) if facts else []


def _ranks(facts: PartFacts | None) -> list[int]:
    return sorted({process.record.rank for process in facts.processes}) if facts else []
