"""An answer is the same with partials and without them; a file that cannot be taken costs a note."""

from __future__ import annotations

import gzip
import re
import shutil
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from benchmarks import kept_run
from perfscope.constants import MOST_RANKS
from perfscope.engine import measuring
from perfscope.engine.analysis_report import to_report
from perfscope.engine.inputs import find_inputs
from perfscope.engine.run import Analysis, Plan, analyze, measure_with
from perfscope.engine.tasks import MeasuredTrace, MeasureTask
from perfscope.engine.windows import TraceFiles
from perfscope.errors import MissingInput, SourceError
from perfscope.merging.merge import Choice, merge
from perfscope.page.build import analyze_for_page, build_page
from perfscope.renderers import Format, render
from perfscope.sources.partials import read_partials, to_bytes
from perfscope.sources.traces.files import find_traces
from perfscope.wire.traces import partials_path
from tests.conftest import ROOT
from tests.engine.storing import copy_with_partials, without_traces

FIXTURES = ROOT / "fixtures"
#: Several ranks, paired windows, no device, a finding that a replay answers.
RUNS = "runs/h200_zero2", "light/ddp_gpu_bound", "findings/cpu/clean", "findings/h200/item"
FRESH = Plan(is_fresh=True)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[str, ...]]]:
    """The traces that are read, each with the analyzers that measure it."""
    calls: list[tuple[str, tuple[str, ...]]] = []
    measure = measuring.measure

    def counted(files: TraceFiles, task: MeasureTask) -> MeasuredTrace:
        calls.append((Path(files.path).name, task.analyzers))
        return measure(files, task)

    monkeypatch.setattr(measuring, "measure", counted)
    return calls


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return copy_with_partials(FIXTURES / "runs" / "h200_zero2", tmp_path)


def texts(analysis: Analysis) -> list[str]:
    return [render(to_report(analysis), to) for to in Format]


@pytest.mark.parametrize("source", RUNS)
def test_answers_are_the_same_with_partials_and_without(
    source: str, tmp_path: Path, read: list[tuple[str, tuple[str, ...]]]
) -> None:
    copy = copy_with_partials(kept_run(FIXTURES / source), tmp_path)
    read.clear()
    expected = analyze([copy], FRESH)
    traces = len(read)
    read.clear()
    analysis = analyze([copy])
    assert texts(analysis) == texts(expected)
    assert analysis.notes == expected.notes == ()
    if any("left out" in note for note in analysis.windows.notes):
        return  # two windows that cannot be matched are found out by reading them
    assert len(read) in (0, traces)  # all of them where a finding asks for a replay
    assert {analyzers for _, analyzers in read} <= {("whatif",)}  # the graph is too large to be stored


def test_traces_are_read_once_for_all_findings_that_a_replay_answers(
    run: Path, read: list[tuple[str, tuple[str, ...]]]
) -> None:
    analyze([run])
    assert [analyzers for _, analyzers in read] == [("whatif",), ("whatif",)]


def test_a_rule_for_ranks_reads_the_traces(run: Path, read: list[tuple[str, tuple[str, ...]]]) -> None:
    analyze([run], Plan(only=frozenset({"breakdown"}), rank_rule=re.compile(r"(\d+)")))
    assert len(read) == 2


def test_partials_stand_in_for_traces_that_stayed_on_their_hosts(run: Path) -> None:
    expected = analyze([run])
    without_traces(run)
    analysis = analyze([run])
    assert analysis.damage == expected.damage
    assert list(analysis.results) == list(expected.results)
    for name, result in analysis.results.items():
        if name != "findings":
            assert result.data() == expected.results[name].data()
    assert analysis.notes == (
        "findings rest on no whatif, which needs 2 traces that stayed on the hosts; "
        "`perfscope collect --traces RANKS` brings them",
    )


def test_what_needs_events_says_that_the_traces_stayed_on_their_hosts(run: Path, tmp_path: Path) -> None:
    without_traces(run)
    (skipped,) = analyze([run], Plan(only=frozenset({"timeline"}))).skipped
    assert "needs 2 traces that stayed on the hosts" in skipped.reason
    (skipped,) = analyze([run], Plan(only=frozenset({"kernels"}), with_operators=True)).skipped
    assert "needs 2 traces that stayed on the hosts" in skipped.reason
    with pytest.raises(MissingInput, match="needs 2 traces that stayed on the hosts"):
        measure_with("whatif", tuple, [run])
    with pytest.raises(SourceError) as error:
        merge(find_inputs([run]), tmp_path / "merged.json", Choice(frozenset(), (), 0, 1))
    assert "2 traces stayed on the hosts" in (error.value.hint or "")
    assert "stayed on the hosts" in build_page(analyze_for_page(find_inputs([run]), Plan()))


def damage(partials: Path, trace: Path, how: str) -> None:
    content = partials.read_bytes()
    if how == "half-written":
        partials.write_bytes(content[: len(content) // 2])
    elif how == "a pickle":
        partials.write_bytes(b"cos\nsystem\n(S'touch /tmp/harm'\ntR.")
    elif how == "of another trace":
        other = next(path for path in partials.parent.glob("*.partials") if path != partials)
        shutil.copyfile(other, partials)
    elif how == "of a trace that was changed":
        text = gzip.decompress(trace.read_bytes()).replace(b"Memset", b"memset", 1)
        trace.write_bytes(gzip.compress(text))
    elif how == "a folder":
        partials.unlink()
        partials.mkdir()


@pytest.mark.parametrize(
    "how",
    ["half-written", "a pickle", "of another trace", "of a trace that was changed", "a folder"],
)
def test_a_file_that_cannot_be_taken_costs_a_note(how: str, run: Path, read: list[tuple[str, tuple[str, ...]]]) -> None:
    trace = Path(find_traces([str(run / "traces")])[0])
    damage(Path(partials_path(str(trace))), trace, how)
    plan = Plan(only=frozenset({"breakdown"}))
    analysis = analyze([run], plan)
    assert [name for name, _ in read] == [trace.name]
    assert texts(analysis) == texts(analyze([run], Plan(only=plan.only, is_fresh=True)))
    assert len(analysis.notes) == 1
    assert not analysis.damage
    assert all("its trace is read" in note for note in analysis.notes)


def test_a_job_of_more_ranks_than_there_can_be_is_not_believed(run: Path) -> None:
    expected = texts(analyze([run], Plan(only=frozenset({"breakdown"}), is_fresh=True)))
    for partials in run.rglob("*.partials"):
        stored = read_partials(str(partials))
        measured = msgspec.msgpack.decode(stored.trace)
        assert measured[1][2] == 2  # the world size of its summary
        measured[1][2] = 10**12
        partials.write_bytes(to_bytes(replace(stored, trace=msgspec.Raw(msgspec.msgpack.encode(measured)))))
    analysis = analyze([run], Plan(only=frozenset({"breakdown"})))
    assert texts(analysis) == expected
    (note,) = analysis.notes
    assert "is of more ranks than a job has" in note
    record = run / "ranks" / "00001" / "rank.json"
    record.write_text(record.read_text().replace('"world_size":2', f'"world_size":{MOST_RANKS + 1}'))
    assert "ranks/00001/rank.json cannot be read" in analyze([run]).damage


def test_absent_traces_whose_partials_are_damaged_are_damage(run: Path) -> None:
    trace = find_traces([str(run / "traces")])[0]
    without_traces(run)
    Path(partials_path(trace)).write_bytes(b"")
    analysis = analyze([run], Plan(only=frozenset({"breakdown"})))
    line = analysis.damage[0]
    assert f"{trace} stayed on its host, and {Path(partials_path(trace)).name} is not in the format" in line


def test_the_windows_that_are_at_hand_are_read_where_the_others_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partials of other code stood for the light windows: all traces "stayed on their hosts", the page was empty."""
    copy = copy_with_partials(FIXTURES / "light" / "ddp_gpu_bound", tmp_path)
    plan = Plan(only=frozenset({"breakdown", "kernels"}))
    for light in (copy / "traces" / "light").glob("*.gz"):
        light.unlink()
    assert analyze([copy], plan).windows.times == "light"
    monkeypatch.setattr("perfscope.engine.partials.__version__", "9.9")
    analysis = analyze([copy], plan)
    assert analysis.results.keys() == {"breakdown", "kernels"}
    assert (analysis.windows.times, analysis.windows.is_paired) == ("operators", False)
    (note,) = analysis.windows.notes
    assert note.startswith("The light windows are left out: their traces stayed on the hosts")
    assert ["stayed on its host" in line for line in analysis.damage] == [True, True]
