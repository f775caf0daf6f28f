"""``perfscope report``: published tables that check themselves, and reports that regenerate themselves."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from perfscope.commands.options.common import FormatOption, require_positive
from perfscope.errors import ExitCode, UsageError
from perfscope.models.conventions import Checkpointing
from perfscope.models.hardware import find_gpu
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.report import Column, Json, Report, Section
from perfscope.tables.published import Constant, Quantity
from perfscope.units import parse_parameters

app = typer.Typer(help="Keep published tables right: recompute their cells, regenerate their blocks.")


SeqLenOption = Annotated[int | None, typer.Option(help="Tokens in a sequence, whatever the text says.")]
CheckpointingOption = Annotated[
    Checkpointing | None, typer.Option(help="Activations that are recomputed, whatever the text says.")
]
TensorParallelOption = Annotated[int | None, typer.Option(help="Tensor parallel size, where no column states it.")]
GpusOption = Annotated[int | None, typer.Option(help="Number of GPUs, where no column states it.")]
SizeOption = Annotated[str | None, typer.Option(help="Parameters of the model, where no column states them: 104B.")]
GbsOption = Annotated[int | None, typer.Option(help="Global batch size, where no column states it.")]
GpuOption = Annotated[str | None, typer.Option(help="The GPU, for columns that state a share of its peak.")]


@app.command()
def refresh(
    file: Annotated[Path, typer.Argument(metavar="FILE.md", help="A markdown file with tables.")],
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; list the differences and end with 3.")
    ] = False,
    seq_len: SeqLenOption = None,
    checkpointing: CheckpointingOption = None,
    tp: TensorParallelOption = None,
    gpus: GpusOption = None,
    size: SizeOption = None,
    gbs: GbsOption = None,
    gpu: GpuOption = None,
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Recompute the TFLOPs, speed-up, efficiency and percentage cells of a file's tables, in place."""
    from perfscope.regenerate.refresh import refresh_file

    peak = find_gpu(gpu).dense_16bit_tflops if gpu else None
    return refresh_file(file, given(seq_len, checkpointing, tp, gpus, size, gbs), peak, check=check, to=format)


@app.command()
def build(
    path: Annotated[Path, typer.Argument(metavar="FILE.md | FOLDER", help="A report, or a folder of reports.")],
    check: Annotated[bool, typer.Option("--check", help="Change nothing; list stale cells and end with 3.")] = False,
    commits: Annotated[
        bool, typer.Option("--commits", help="Look up the commits of files that have not changed too.")
    ] = False,
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Write the blocks between <!-- perfscope: COMMAND --> and <!-- /perfscope --> again from their raw files."""
    from perfscope.regenerate.build import Commits, build_pages, write_pages
    from perfscope.regenerate.built import to_report

    pages = build_pages(path, Commits.LOOKED_UP if commits else Commits.KEPT)
    if not check:
        write_pages(pages)
    stale = any(page.stale for page in pages)
    report = to_report(pages, written=not check)
    return Outcome(report, format, exit_code=ExitCode.DIFFERENCE if check and stale else ExitCode.OK)


@app.command()
def table(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="CSV or markdown files with raw tables.")],
    add: Annotated[
        list[str] | None,
        typer.Option(help="A column to compute: tflops, speed-up, efficiency, save-speed or memory-share."),
    ] = None,
    differences: Annotated[bool, typer.Option("--differences", help="Print only what does not follow.")] = False,
    seq_len: SeqLenOption = None,
    checkpointing: CheckpointingOption = None,
    tp: TensorParallelOption = None,
    gpus: GpusOption = None,
    size: SizeOption = None,
    gbs: GbsOption = None,
    gpu: GpuOption = None,
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Print raw tables with their recomputed cells, added columns and a verdict on each row."""
    from perfscope.regenerate.recomputed import ADDED, differing_cells, recomputed_tables

    unknown = [name for name in add or () if name not in ADDED]
    if unknown:
        raise UsageError(f"{unknown[0]!r} cannot be added", hint=f"known: {', '.join(ADDED)}")
    peak = find_gpu(gpu).dense_16bit_tflops if gpu else None
    constants = given(seq_len, checkpointing, tp, gpus, size, gbs)
    if differences:
        return Outcome(differing_cells(files, constants, peak), format)
    return Outcome(recomputed_tables(files, constants, peak, add or ()), format)


@app.command()
def runs(
    file: Annotated[Path, typer.Argument(metavar="RUNS.csv", help="One row a run: its GPUs (4n8g counts), its rate.")],
    published: Annotated[
        Path | None, typer.Option(help="A CSV of what was published: GPUs, mean, median, speed-up.")
    ] = None,
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Print the mean, median and speed-up of configurations that were run several times."""
    from perfscope.analyzers.published.repeated_runs import analyze
    from perfscope.sources.published.tables import read_runs

    result = analyze(read_runs(file), read_runs(published) if published else None)
    data: dict[str, Json] = {"schema": "perfscope/runs/1", "results": {"runs": result.data()}}
    return Outcome(Report(f"Repeated runs of {file}", data, result.sections()), format)


@app.command()
def environment(
    path: Annotated[
        Path, typer.Argument(metavar="RUN_DIR | FILE.json", help="A run, or a JSON file like its run.json.")
    ],
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Print where a run ran: GPUs, how they are connected, driver and versions."""
    from perfscope.sources.runs.environment import read_environment

    found = read_environment(path)
    facts = Section("Environment", (Column("What"), Column("Which")), found.facts)
    sections = [facts]
    if found.topology:
        headings, *rows = found.topology
        legend = "NV: bonded NVLinks; PIX, PXB, PHB, NODE, SYS: PCIe, ever farther."
        sections.append(Section("GPU topology", tuple(Column(name) for name in headings), tuple(rows), (legend,)))
    if found.command:
        sections.append(Section("Command", notes=(f"`{found.command}`",)))
    data: dict[str, Json] = {
        "schema": "perfscope/environment/1",
        "results": {"facts": dict(found.facts), "topology": [list(row) for row in found.topology]},
    }
    return Outcome(Report(f"Environment of {path}", data, tuple(sections)), format)


@app.command()
def overhead(
    path: Annotated[
        Path, typer.Argument(metavar="FILE.json", help="What `python -m benchmarks.overhead --json` wrote.")
    ],
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Print what perfscope itself cost where its benchmark ran, beside what it may cost."""
    from perfscope.sources.runs.overhead import read_overhead

    machine, lines = read_overhead(path)
    columns = (
        Column("What"),
        Column("With perfscope", 2),
        Column("Bare", 2),
        Column("Difference"),
        Column("Limit"),
        Column("Kept"),
    )
    rows = tuple(
        (line.what, line.ours, line.bare, line.difference or None, line.limit or None, line.kept or None)
        for line in lines
    )
    data: dict[str, Json] = {
        "schema": "perfscope/overhead/1",
        "results": {"machine": machine, "lines": [asdict(line) for line in lines]},
    }
    section = Section("Overhead", columns, rows, (f"On {machine}. Medians, A and B in turn in one run.",))
    return Outcome(Report(f"What perfscope cost: {path}", data, (section,)), format)


def given(
    seq_len: int | None,
    checkpointing: Checkpointing | None,
    tp: int | None,
    gpus: int | None,
    size: str | None,
    gbs: int | None,
) -> dict[Quantity, Constant]:
    """The constants that options set."""
    counts = {
        Quantity.SEQ_LEN: ("--seq-len", seq_len),
        Quantity.TENSOR_PARALLEL: ("--tp", tp),
        Quantity.GPUS: ("--gpus", gpus),
        Quantity.GLOBAL_BATCH: ("--gbs", gbs),
    }
    constants = {
        quantity: Constant(require_positive(option, value), option)
        for quantity, (option, value) in counts.items()
        if value is not None
    }
    if size is not None:
        constants[Quantity.PARAMETERS] = Constant(parse_parameters(size), "--size")
    if checkpointing is not None:
        passes = 4 if checkpointing is Checkpointing.FULL else 3
        constants[Quantity.PASSES] = Constant(passes, f"--checkpointing {checkpointing}")
    return constants
