"""``perfscope collect``: one run from the parts that hosts without a shared file system hold."""

from __future__ import annotations

import re
import shlex
import shutil
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from perfscope import wire
from perfscope.collect.merge import (
    NOTHING_KNOWN,
    PartFacts,
    apply_merge,
    find_missing_ranks,
    merge_descriptions,
    plan_merge,
    read_part_facts,
    require_distinct_ranks,
    require_one_run,
)
from perfscope.collect.parts import Fetched, RunPart, Unreachable, fetch, parse_part
from perfscope.commands.options import FormatOption, outcome_of
from perfscope.constants import MB
from perfscope.errors import UsageError
from perfscope.files import replace_file
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.report import Cell, Column, Json, Report, Section
from perfscope.result import to_object
from perfscope.sources.stores.location import is_url
from perfscope.units import format_count, format_ranges, parse_ranges
from perfscope.wire.records import to_file

_SCHEMA = "perfscope/collected/1"
_STAGING_FOLDER = ".collect"
#: What was copied of a part, and its processes.
CollectedPart: TypeAlias = tuple[Fetched, PartFacts]


def collect(
    part_names: Annotated[
        list[str],
        typer.Argument(metavar="PART...", help="Parts of a run: folders, or HOST:PATH over ssh."),
    ],
    run_dir: Annotated[
        Path, typer.Option("-o", "--output", "--run-dir", help="Folder of the merged run, new or existing.")
    ],
    ssh: Annotated[
        str | None,
        typer.Option(help='Command that reaches other hosts, such as "ssh -p 2222".', show_default="ssh"),
    ] = None,
    format: FormatOption = Format.MARKDOWN,
    traces: Annotated[
        str | None,
        typer.Option(
            help="Bring the traces of these ranks alone: 0,8-15, none or all. Of the others come the partials that "
            "stand beside them: kilobytes of each rank.",
            show_default="all files",
        ),
    ] = None,
) -> Outcome:
    """Merge the parts of a run into one folder, from other folders and other hosts.

    A new folder appears when it is complete. An interrupted copy continues when the same command is run again; an
    existing file is never overwritten by a different one.
    """
    if is_url(str(run_dir).replace(":/", "://", 1)):  # a path has lost one of the two slashes
        raise UsageError(f"{run_dir} is a URL", hint="the merged run is a folder of this machine")
    parts = [parse_part(name, shlex.split(ssh) if ssh else ()) for name in dict.fromkeys(part_names)]
    target = run_dir.absolute()
    if any(Path(part.name).absolute() == target for part in parts):
        raise UsageError(
            f"{run_dir} is both a part and the merged run", hint="leave it out of the parts: they are added to it"
        )
    work = target if target.exists() else target.with_name(f".{target.name}.collecting")
    work.mkdir(parents=True, exist_ok=True)
    collected, staged = _fetch_all(parts, work, _parse_traces(traces))
    if not staged and not (work / wire.RUN_FILE).exists() and not (work / wire.RANKS_FOLDER).is_dir():
        problems = "; ".join(part.problem for part, _ in collected if part.problem)
        raise Unreachable(f"no part could be copied: {problems}", hint="run the same command again to continue")
    notes = _merge(collected, staged, work)
    if work != target:
        work.rename(target)
    report = _report(collected, read_part_facts(str(run_dir), target), notes, run_dir)
    return outcome_of(report, format)


def _parse_traces(text: str | None) -> frozenset[int] | None:
    """The ranks whose traces come along; None for all files."""
    if text in (None, "all"):
        return None
    return frozenset(() if text == "none" else parse_ranges(text))


def _fetch_all(
    parts: Sequence[RunPart], work: Path, ranks: frozenset[int] | None
) -> tuple[list[CollectedPart], list[Path]]:
    """Copy every part into a folder of the run; the others are copied where one is unreachable."""
    existing = [path.relative_to(work).as_posix() for path in (work / wire.TRACES_FOLDER).rglob("*") if path.is_file()]
    existing += [name.removesuffix(".gz") for name in existing]
    collected: list[CollectedPart] = []
    staged: list[Path] = []
    for part in parts:
        safe_name = re.sub(r"[^A-Za-z0-9_.-]", "_", part.name)
        folder = work / _STAGING_FOLDER / f"{safe_name}-{zlib.crc32(part.name.encode()):08x}"
        try:
            fetched = fetch(part, folder, existing, work, ranks)
        except Unreachable as error:
            collected.append((Fetched(part.name, problem=error.problem), NOTHING_KNOWN))
        else:
            staged.append(folder)
            collected.append((fetched, read_part_facts(part.name, folder)))
    return collected, staged


def _merge(collected: Sequence[CollectedPart], staged: Sequence[Path], work: Path) -> list[str]:
    """Move every part into the run. Raises SourceError: they are not of one run; nothing was moved."""
    existing = read_part_facts(work.name, work)
    facts = [facts for _, facts in collected]
    notes = require_one_run([*([existing] if existing.processes or existing.run_ids else []), *facts])
    processes = {
        (process.record.rank, process.identity): process for part in (existing, *facts) for process in part.processes
    }
    require_distinct_ranks(list(processes.values()))
    for folder in staged:
        plan_merge(folder, work)  # raises before anything is moved
    merge_descriptions(staged, work, list(processes.values()))
    for folder in staged:
        apply_merge(plan_merge(folder, work))
    if all(part.problem is None for part, _ in collected):
        shutil.rmtree(work / _STAGING_FOLDER, ignore_errors=True)
    return notes


def _report(collected: Sequence[CollectedPart], run: PartFacts, notes: Sequence[str], run_dir: Path) -> Report:
    missing_ranks = find_missing_ranks(run.processes)
    problems = [part.problem for part, _ in collected if part.problem]
    warnings = [*problems, *notes]
    if missing_ranks:
        world_size = max(process.record.world_size for process in run.processes)
        warnings.append(f"{len(missing_ranks)} of {world_size} ranks are missing: {format_ranges(missing_ranks)}")
    data: dict[str, Json] = {
        "schema": _SCHEMA,
        "run_dir": str(run_dir),
        "ranks": run.ranks,
        "missing_ranks": missing_ranks,
        "parts": [{**to_object(part), "hosts": facts.hosts, "ranks": facts.ranks} for part, facts in collected],
    }
    replace_file(run_dir.absolute() / wire.COLLECTED_FILE, to_file(data))
    return Report(f"Run {run_dir}", data, (_parts_section(collected, run_dir),), tuple(warnings))


def _parts_section(collected: Sequence[CollectedPart], run_dir: Path) -> Section:
    rows: list[tuple[Cell, ...]] = [
        (
            fetched.part,
            ", ".join(facts.hosts) or None,
            format_ranges(facts.ranks) or None,
            fetched.copied_files,
            fetched.copied_bytes / MB,
        )
        for fetched, facts in collected
    ]
    columns = (Column("Part"), Column("Host"), Column("Ranks"), Column("Files copied"), Column("MB", 3))
    notes = [f"`perfscope analyze {shlex.quote(str(run_dir))}` reads the merged run."]
    left = sum(part.left_traces for part, _ in collected)
    if left:
        stays = "stays where it is" if left == 1 else "stay where they are"
        notes.append(
            f"{format_count(left, 'trace')} {stays}; the same command with `--traces RANKS` brings those of ranks."
        )
    return Section("Parts", columns, tuple(rows), notes=tuple(notes))
