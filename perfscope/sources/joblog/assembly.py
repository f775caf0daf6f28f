"""The table of a log from everything that was read: the source of the step time, and the framework."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perfscope.sources.joblog.content.builder import JobLogBuilder
from perfscope.sources.joblog.files.file_names import parse_file_name
from perfscope.sources.joblog.log_format import OpenFormat, Role
from perfscope.sources.joblog.series.iteration_series import IterationSeries
from perfscope.tables.joblog import JobLog, SourceMedian


def assemble_log(log: JobLogBuilder, formats: Sequence[OpenFormat], path: Path) -> JobLog:
    """Close the formats and make the table."""
    name = parse_file_name(path)
    for fact, value in name.facts.items():
        log.set_fact(fact, value, "name")
    trainers_first = sorted(formats, key=lambda log_format: log_format.role)
    for log_format in trainers_first:
        log_format.close()
    sources = _sources(formats)
    source = _step_time_source(log, list(sources))
    series = log.series[source] if source is not None else IterationSeries()
    last_iteration = log.count("train_iterations")
    mixture = log.mixture_of(source)
    if mixture is not None:
        log.add_remark("mixed-jobs", f"{mixture}: no figure is of one job")
    if series.unnumbered_ranks > 1:
        text = f"{series.unnumbered_ranks} ranks print records without a number; those of one of them are counted"
        log.add_remark("unnumbered-ranks", text)
    iterations = series.iterations()
    return JobLog(
        path=str(path),
        framework=_framework(log, trainers_first, sources[source] if source is not None else None),
        iterations=iterations if mixture is None else iterations.without_figures(),
        folded=series.folded() if mixture is None else None,
        time_source=source,
        copies=series.copies,
        redone=series.redone,
        gaps=series.irregular_gaps,
        unreadable=log.unreadable,
        other_sources=_summarize_sources(log, [name for name in sources if name != source and mixture is None]),
        facts=log.facts(),
        arguments=log.arguments,
        tflops_label=log.tflops_label,
        saves=log.saves.table(),
        timers=log.timers(),
        memory=log.memory,
        out_of_memory=log.out_of_memory,
        names_run=name.is_run,
        ended=log.bad_end,
        complete=None
        if series.last is None or last_iteration is None or mixture is not None
        else series.last >= last_iteration,
        remarks=tuple(f"{code}: {text}" for code, text in log.remarks.items()),
        mixture=mixture,
    )


def _sources(formats: Sequence[OpenFormat]) -> dict[str, OpenFormat]:
    """Every source of step times, best first, and the format that it belongs to."""
    ranked = [(source, log_format) for log_format in formats for source in log_format.sources]
    return {source.name: log_format for source, log_format in sorted(ranked, key=lambda pair: pair[0].is_fallback)}


def _step_time_source(log: JobLogBuilder, sources: Sequence[str]) -> str | None:
    """The best source that gives a time, else the best one that has records."""
    times = log.median_times()
    timed = [source for source in sources if source in times]
    recorded = [source for source in sources if source in log.series and len(log.series[source])]
    return next(iter((*timed, *recorded)), None)


def _summarize_sources(log: JobLogBuilder, sources: Sequence[str]) -> tuple[SourceMedian, ...]:
    medians = [
        SourceMedian(source, log.series[source].median_ns(), log.median_samples_per_s(source))
        for source in sources
        if source in log.series
    ]
    return tuple(median for median in medians if (median.wall_ns, median.samples_per_s) != (None, None))


def _framework(log: JobLogBuilder, formats: Sequence[OpenFormat], timed_by: OpenFormat | None) -> str | None:
    """The trainer whose step time it is; without one, the first that some line identifies."""
    writer = timed_by
    if timed_by is None or timed_by.role is Role.ENGINE:
        identified = (log_format for log_format in formats if log_format.framework in log.frameworks)
        writer = next(identified, timed_by)
    if writer is None:
        return None
    return writer.framework_of() if writer.framework_of else writer.framework
