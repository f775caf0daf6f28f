"""``perfscope scaling``: throughput, speed-up and efficiency over nodes and GPUs, from folders of runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from perfscope.analyzers import steps
from perfscope.analyzers.logs.setup import Overrides
from perfscope.analyzers.logs.summary import summarize_log
from perfscope.analyzers.scaling import dlperf
from perfscope.analyzers.scaling.study import Scaling, study_scaling
from perfscope.charts.svg import draw_file
from perfscope.commands.options import FormatOption, require_svg
from perfscope.constants import GIGA
from perfscope.errors import ExitCode, MissingInput, PerfscopeError, SourceError, UsageError
from perfscope.files import replace_file
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.report import Report
from perfscope.result import to_object
from perfscope.sources.dlperf import Protocol, read_protocol
from perfscope.sources.joblog import find_logs, read_log
from perfscope.sources.joblog.files import parse_file_name
from perfscope.sources.published.points import is_table, read_points
from perfscope.sources.runs.folder import is_run
from perfscope.sources.runs.run import read_run
from perfscope.tables.joblog import JobLog
from perfscope.tables.scaling import ClusterSize, ProtocolRun, ScalingRun

_MODEL = re.compile(r"([A-Za-z][A-Za-z0-9.+-]*?)_b\d+_")
_KNOWN_MODEL = re.compile(
    r"(?:^|[-_])((?:gpt|bert|llama|resnet|vgg|t5|opt|bloom|mixtral|qwen)[a-z0-9.-]*)(?=[-_]|$)", re.IGNORECASE
)


def write_plot(study: Scaling, path: Path | None) -> tuple[str, ...]:
    """Draw a study to an SVG file; returns the notes of the command."""
    if path is None:
        return ()
    if not study.series:
        return (f"note: {path} is not written, because no set-up was run on two different numbers of GPUs",)
    replace_file(path, draw_file([study.chart()]).encode())
    return (f"wrote {path}",)


_RULES: dict[Protocol, Callable[[Sequence[ProtocolRun]], dlperf.ProtocolResult]] = {
    Protocol.MXNET_BERT: dlperf.mxnet_bert,
    Protocol.DEEPSPEED: dlperf.deepspeed,
}


def scaling(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...", help="Folders of logs or of runs; CSV or markdown tables with GPUs and throughput."
        ),
    ],
    protocol: Annotated[
        Protocol | None, typer.Option(help="Apply the rules of a published benchmark.", show_default="none")
    ] = None,
    warmup: Annotated[
        int | None,
        typer.Option(help="Iterations to exclude at the start of each log.", show_default="the first record"),
    ] = None,
    predict: Annotated[
        str | None, typer.Option(help="Numbers of GPUs to predict: 64,128.", show_default="twice the largest number")
    ] = None,
    svg: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Draw the series.")] = None,
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Report how throughput scales with GPUs, and fit scaling laws."""
    if warmup is not None and warmup < 0:
        raise UsageError(f"--warmup must be at least 0, not {warmup}")
    if svg is not None:
        require_svg(svg)
    predicted_gpus = _parse_counts(predict)
    published = None
    if protocol is None:
        runs, problems = read_runs(paths, warmup)
        if not runs:
            raise PerfscopeError(
                "; ".join(problems[:1]) or "there is no run in " + ", ".join(map(str, paths)),
                hint="name folders of logs, whose names state nodes and GPUs as 2n8g/ does, or a table of points",
            )
    else:
        if warmup is not None:
            raise UsageError("a protocol has its own warm-up", hint="omit --warmup")
        logged, problems = read_protocol(paths, protocol)
        try:
            published = _RULES[protocol](logged)
        except MissingInput as error:
            raise PerfscopeError(str(error)) from None
        runs = list(_list_protocol_runs(published))
    study = study_scaling(runs, predicted_gpus, problems=problems, protocol=protocol, published=published)
    title = "Scaling" if protocol is None else f"Scaling by {protocol}"
    report = Report(title, to_object(study), study.sections(), study.notes)
    notes = (*(f"note: {line}" for line in study.notes), *write_plot(study, svg))
    exit_code = ExitCode.DAMAGED_INPUT if problems and protocol is None else ExitCode.OK
    return Outcome(report, format, notes=notes, exit_code=exit_code)


def _parse_counts(text: str | None) -> tuple[int, ...]:
    words = [] if text is None else text.split(",")
    if not all(re.fullmatch(r"\s*0*[1-9][0-9]{0,8}\s*", word, re.ASCII) for word in words):
        raise UsageError(f"{text!r} is not a list of numbers of GPUs", hint="write --predict 64,128")
    return tuple(int(word) for word in words)


#: Flags of a log's summary that cast doubt on its throughput.
_DOUBTS = ("throughput-disagrees", "name-disagrees", "mixed-jobs")


def read_runs(paths: list[Path], warmup: int | None) -> tuple[list[ScalingRun], list[str]]:
    """The runs of folders, and why the remaining logs are no runs."""
    folders = [folder for path in paths if path.is_dir() for folder in _list_run_folders(path)]
    runs = [run for run in map(_read_profiled_run, folders) if run is not None]
    problems: list[str] = []
    for path in find_logs(paths):
        points, doubts = read_points(path) if is_table(path) else ([], [])
        runs += points
        problems += doubts
        if points or any(folder in path.parents for folder in folders):
            continue
        try:
            run = _read_logged_run(path, warmup)
        except SourceError as error:
            problems.append(str(error))
            continue
        if run is None:
            problems.append(
                f"{path}: its numbers of nodes and GPUs are unknown, or it is not a log or a table of points"
            )
        else:
            runs.append(run)
    return runs, problems


def _list_protocol_runs(result: dlperf.ProtocolResult) -> Iterator[ScalingRun]:
    """The runs of a benchmark with the speeds of its protocol."""
    for model, speeds in result.results.items():
        for speed in speeds.values():
            for run, samples_per_s in speed.runs.items():
                yield ScalingRun(
                    path=f"{speed.cluster}, run {run}",
                    cluster=speed.cluster,
                    model=model,
                    batch=speed.batch_size_per_device * speed.cluster.gpus,
                    samples_per_s=samples_per_s,
                )


def _list_run_folders(path: Path) -> list[Path]:
    if is_run(path):
        return [path]
    return [folder for folder in sorted(path.iterdir()) if folder.is_dir() and is_run(folder)]


def _read_logged_run(path: Path, warmup: int | None) -> ScalingRun | None:
    log = read_log(path)
    summary = summarize_log(log, Overrides(warmup=warmup))
    cluster = _find_cluster_size(path, log, summary.setup.gpus)
    if cluster is None or summary.status == "unrecognised":
        return None
    precision = log.fact("precision")
    batch = summary.setup.gbs
    layout = summary.setup.layout
    micro_batch, replicas = layout.mbs, layout.dp
    if batch is None and micro_batch is not None:
        batch = micro_batch * (replicas or cluster.gpus) * (log.number("gas") or 1)
    return ScalingRun(
        path=str(path),
        cluster=cluster,
        model=_find_model_name(path, log),
        batch=batch,
        precision=None if precision is None else str(precision.value),
        seq_len=log.number("seq_len"),
        zero_stage=log.number("zero_stage"),
        samples_per_s=summary.samples_per_s,
        out_of_memory=log.out_of_memory is not None,
        notes=tuple(flag for flag in summary.flags if flag.startswith(_DOUBTS)),
    )


def _read_profiled_run(path: Path) -> ScalingRun | None:
    run = read_run(path)
    world_size = max((rank.world_size for rank in run.ranks), default=0)
    hosts = len({rank.host for rank in run.ranks})
    cluster = _find_cluster_size(path, None, world_size or None, hosts or None)
    if cluster is None:
        return None
    try:
        result = steps.analyze(run)
    except MissingInput:
        speed, batch = None, None
    else:
        speed = result.samples_per_s
        batch = None if result.samples_per_step is None else round(result.samples_per_step)
    return ScalingRun(
        path=str(path),
        cluster=cluster,
        model=_find_model_name(path, None),
        batch=batch,
        samples_per_s=speed,
    )


def _find_cluster_size(
    path: Path, log: JobLog | None, world_size: int | None = None, hosts: int | None = None
) -> ClusterSize | None:
    """Nodes and GPUs of a run: from its name or folder, else from the run itself; None where they are unknown."""
    facts = parse_file_name(path).facts
    nodes, per_node = facts.get("nodes"), facts.get("gpus_per_node")
    if isinstance(nodes, int) and isinstance(per_node, int):
        return ClusterSize(nodes * per_node, nodes) if nodes and per_node else None
    gpus = world_size or (log.number("gpus") if log is not None else None)
    node_count = hosts or (log.number("nodes") if log is not None else None) or 1
    if gpus is None or gpus < 1:
        return None
    return ClusterSize(gpus, node_count if gpus % node_count == 0 else 1)


def _find_model_name(path: Path, log: JobLog | None) -> str:
    """The trained model: from the log's name, else its size, else its framework."""
    for name in (path.name, path.parent.name):
        match = _MODEL.match(name) or _KNOWN_MODEL.search(name)
        if match:
            return match[1].rstrip("-.")
    size = log.number("parameters") if log is not None else None
    if size:
        return f"{size / GIGA:.3g}B"
    return (log.framework if log is not None else None) or "unknown"
