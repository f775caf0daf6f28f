"""Checkpoints: how long each save stalled training, and the files of the last one."""

from __future__ import annotations

from perfscope.analyzers.saves import Save, SaveTimes
from perfscope.charts.grammar import Categories, Chart, Span, Spans, Values
from perfscope.charts.palette import Colour
from perfscope.constants import MB
from perfscope.engine.run import Analysis
from perfscope.page.part import Figure, Part, rank_name, result_of, why_absent
from perfscope.report import Cell, Column, Section
from perfscope.tables.saves import Saves, SaveTiming

_IDENTITY, _TITLE = "checkpoints", "Checkpoint files"
_MOST_SAVES, _MOST_FILES = 24, 24


def show_checkpoints(analysis: Analysis) -> Part:
    """A bar for each save, and one for each of the largest files of the last save that states them."""
    saves, run = result_of(analysis, "saves", SaveTimes), analysis.run
    if saves is None or run is None or run.saves is None:
        return Part(_IDENTITY, _TITLE, absent=why_absent(analysis, "saves"))
    timed = [save for save in saves.saves if save.blocked_s is not None]
    figures = [Figure((_chart_saves(timed[-_MOST_SAVES:]),), _table_saves(timed))] if timed else []
    files, left_out = _list_files(run.saves)
    if files:
        figures.append(Figure((_chart_files(files),), _table_files(files)))
    hidden = max(len(timed) - _MOST_SAVES, 0)
    lead = f"The last {_MOST_SAVES} of {len(timed)} saves are drawn. " if hidden else ""
    lead += (
        f"Of the last save the {_MOST_FILES} largest files are drawn; {left_out} smaller ones are not."
        if left_out
        else ""
    )
    return Part(_IDENTITY, _TITLE, lead.strip(), tuple(figures), saves.sections())


def _save_name(save: Save) -> str:
    return "step unknown" if save.step is None else f"step {save.step}"


def _chart_saves(saves: list[Save]) -> Chart:
    stalled = [
        Span(row, 0, save.blocked_s or 0.0, f"{_save_name(save)}: training stalled for {save.blocked_s or 0:,.3f} s")
        for row, save in enumerate(saves)
    ]
    beside = [
        Span(row, save.blocked_s or 0.0, save.drained_s, f"{_save_name(save)}: on disk after {save.drained_s:,.3f} s")
        for row, save in enumerate(saves)
        if save.drained_s is not None and save.drained_s > (save.blocked_s or 0.0)
    ]
    return Chart(
        "Time of each save",
        f"How long each of {len(saves)} saves stalled training, in seconds.",
        Values("seconds", low=0),
        Categories("", tuple(map(_save_name, saves))),
        (
            Spans("training stalled", Colour.WORSE, tuple(stalled)),
            *([Spans("writing beside training", Colour.BESIDE, tuple(beside))] if beside else []),
        ),
    )


def _table_saves(saves: list[Save]) -> Section:
    columns = (Column("After"), Column("Stalled (s)", 4), Column("On disk after (s)", 4), Column("Size (MB)", 3))
    rows: list[tuple[Cell, ...]] = [
        (_save_name(save), save.blocked_s, save.drained_s, None if save.bytes is None else save.bytes / MB)
        for save in saves
    ]
    return Section("Time of each save", columns, tuple(rows))


def _list_files(saves: Saves) -> tuple[list[tuple[str, int, SaveTiming]], int]:
    """The largest files of the last step that states its files, and how many smaller ones there are."""
    stated = [timing for timing in saves.timings if timing.files]
    if not stated:
        return [], 0
    last = stated[-1].step
    files = {
        path: (path, size, timing)
        for timing in stated
        if timing.step == last
        for path, size in timing.files or ()
        if size
    }
    ordered = sorted(files.values(), key=lambda file: (-file[1], file[0]))
    return ordered[:_MOST_FILES], max(len(ordered) - _MOST_FILES, 0)


def _chart_files(files: list[tuple[str, int, SaveTiming]]) -> Chart:
    spans = tuple(
        Span(row, 0, size / MB, f"{path}: {size / MB:,.2f} MB, by {rank_name(timing.rank)}")
        for row, (path, size, timing) in enumerate(files)
    )
    return Chart(
        "Files of the last save",
        f"Sizes of the {len(files)} largest files, in MB.",
        Values("MB", low=0),
        Categories("", tuple(path.rpartition("/")[2] for path, _, _ in files)),
        (Spans("", Colour.FOURTH, spans),),
        row_height=18,
    )


def _table_files(files: list[tuple[str, int, SaveTiming]]) -> Section:
    columns = (Column("File"), Column("Size (MB)", 3), Column("Written by"))
    rows: list[tuple[Cell, ...]] = [(path, size / MB, rank_name(timing.rank)) for path, size, timing in files]
    return Section("Files of the last save", columns, tuple(rows))
