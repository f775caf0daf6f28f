"""Partials of real traces come back from a file as they were measured, within their share of the trace."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from msgspec.structs import replace

from perfscope.engine import partials
from perfscope.engine.measuring import measure
from perfscope.engine.partials import FLOOR_BYTES, LARGEST_SHARE, load, store
from perfscope.engine.registry import BUILT_IN, Analyzer, Reads
from perfscope.engine.tasks import MeasuredTrace, Task
from perfscope.engine.windows import TraceFiles
from perfscope.sources.partials.header import Identity
from perfscope.sources.partials.stored import Refused
from perfscope.sources.partials.values import Unstorable, pack_value
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import BASIC_EVENTS, NO_EVENTS, Events, Trace
from perfscope.wire.traces import partials_path
from tests.conftest import ROOT

FIXTURES = ROOT / "fixtures"
MEASURING = [analyzer for analyzer in BUILT_IN if analyzer.reads is not Reads.RUN and analyzer.partials_of is None]
NAMES = tuple(analyzer.name for analyzer in MEASURING if analyzer.is_stored)
TRACES = (
    "traces/ddp4/rank0.pt.trace.json.gz",
    "traces/single/rank0.pt.trace.json.gz",
    "traces/gloo2/rank0.pt.trace.json.gz",
    "pipeline/ds_pp2_m8/rank0.pt.trace.json.gz",
    "modules/resnet50/rank0.json.gz",
)
EVENTS = BASIC_EVENTS | Events.GRIDS


@cache
def measured(name: str) -> MeasuredTrace:
    return measure(TraceFiles(str(FIXTURES / name)), Task(NAMES, Events.GRIDS))


def written(name: str, folder: Path, **options: object) -> Path:
    files = TraceFiles(str(FIXTURES / name))
    path = folder / "a.partials"
    path.write_bytes(store(measured(name), files, NAMES, EVENTS, **options))  # type: ignore[arg-type]
    return path


@pytest.mark.parametrize("analyzer", MEASURING, ids=lambda analyzer: analyzer.name)
def test_the_partials_of_every_analyzer_have_a_type_that_can_be_read(analyzer: Analyzer) -> None:
    assert pack_value(None, analyzer.partial_kind() | None)  # type: ignore[operator]


@pytest.mark.parametrize("name", TRACES)
def test_what_is_read_is_what_was_measured(name: str, tmp_path: Path) -> None:
    path = written(name, tmp_path)
    moved = TraceFiles(f"/somewhere/else/{Path(name).name}")
    again = load(str(path)).measured(moved)
    expected = measured(name)
    assert again.summary is not None
    assert expected.summary is not None
    assert again.summary == replace(expected.summary, path=moved.path)
    assert (again.path, again.activities) == (moved.path, expected.activities)
    assert again.partials
    here = load(str(path)).measured(TraceFiles(str(FIXTURES / name)))
    for analyzer in MEASURING:
        if analyzer.name in again.partials:
            kind = analyzer.partial_kind()
            assert pack_value(here.partials[analyzer.name], kind) == pack_value(expected.partials[analyzer.name], kind)
    assert set(here.partials) <= set(expected.partials)


@pytest.mark.parametrize("name", TRACES)
def test_a_file_keeps_to_its_share_of_the_trace(name: str, tmp_path: Path) -> None:
    path = written(name, tmp_path)
    assert path.stat().st_size <= max(FLOOR_BYTES, LARGEST_SHARE * (FIXTURES / name).stat().st_size)


def test_what_does_not_fit_is_left_out_and_not_said_to_be_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partials, "FLOOR_BYTES", 2500)
    monkeypatch.setattr(partials, "LARGEST_SHARE", 0.0)
    loaded = load(str(written(TRACES[0], tmp_path)))
    listed = set(loaded.stored.header.measured)
    assert "breakdown" in listed
    assert "kernels" not in listed
    assert loaded.stored.size <= 2500
    by_name = {analyzer.name: analyzer for analyzer in BUILT_IN}
    assert loaded.serves(by_name["breakdown"], EVENTS)
    assert not loaded.serves(by_name["kernels"], EVENTS)


def test_partials_serve_the_events_that_change_nothing(tmp_path: Path) -> None:
    loaded = load(str(written(TRACES[0], tmp_path)))
    by_name = {analyzer.name: analyzer for analyzer in BUILT_IN}
    assert loaded.serves(by_name["kernels"], BASIC_EVENTS | Events.OPERATOR_TIMES)
    assert not loaded.serves(by_name["kernels"], EVENTS | Events.OPERATORS)
    assert loaded.serves(by_name["collectives"], EVENTS)
    assert not loaded.serves(by_name["collectives"], BASIC_EVENTS)
    alike = load(str(written(TRACES[0], tmp_path, alike_without_grids=frozenset({"collectives"}))))
    assert alike.serves(by_name["collectives"], BASIC_EVENTS)


def test_partials_of_another_version_or_other_code_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(TRACES[2], tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(partials, "__version__", "9.9")
        with pytest.raises(Refused, match="perfscope 0"):
            load(str(path))
    monkeypatch.setattr(partials, "fingerprint", lambda: "other")
    with pytest.raises(Refused, match="other code"):
        load(str(path))


def test_the_fingerprint_changes_with_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "trace.py").write_text("A = 1\n")
    monkeypatch.setattr(partials, "_PACKAGE", tmp_path)
    before = partials.fingerprint.__wrapped__()
    (tmp_path / "tables" / "trace.py").write_text("A = 2\n")
    changed = partials.fingerprint.__wrapped__()
    assert changed != before
    (tmp_path / "tables" / "__pycache__").mkdir()
    (tmp_path / "tables" / "__pycache__" / "trace.py").write_text("not of the code")
    (tmp_path / "tables" / "notes.txt").write_text("not of the code")
    assert partials.fingerprint.__wrapped__() == changed
    (tmp_path / "tables" / "below").mkdir()
    (tmp_path / "tables" / "below" / "trace.py").write_text("B = 1\n")
    assert partials.fingerprint.__wrapped__() != changed


@pytest.mark.parametrize("size", [0, 1, 2**16 - 1, 2**16, 2**16 + 1, 3 * 2**16])
def test_all_of_a_module_counts_whatever_its_size(tmp_path: Path, size: int) -> None:
    path = tmp_path / "module.py"
    path.write_bytes(bytes(number % 251 for number in range(size)))
    assert partials._read_whole(str(path)) == path.read_bytes()


def test_a_trace_that_could_not_be_measured_is_not_stored(tmp_path: Path) -> None:
    files = TraceFiles(str(tmp_path / "none.json"))
    with pytest.raises(Unstorable):
        store(measure(files, Task(NAMES)), files, NAMES, EVENTS)
    broken = replace(measured(TRACES[2]), failed={"idle": "It could not be measured."})
    with pytest.raises(Unstorable):
        store(broken, TraceFiles(broken.path), NAMES, EVENTS, traces=[Identity("a", 1, "0")])


@pytest.mark.parametrize("name", [*TRACES, "whatif/fsdp2/rank0.json.gz", "traces/rpc2/rank1.pt.trace.json.gz"])
def test_a_partial_depends_on_no_other_events_than_its_analyzer_says(name: str) -> None:
    read: dict[Events, Trace] = {}

    def value(analyzer: Analyzer, events: Events) -> object:
        if events not in read:
            read[events] = read_trace(str(FIXTURES / name), events)
        return analyzer.measure(read[events])

    has_device = len(read_trace(str(FIXTURES / name), BASIC_EVENTS).device) > 0
    for analyzer in MEASURING:
        if not analyzer.is_stored or analyzer.name in ("modules", "roofline"):  # these read all that there is
            continue
        needs = analyzer.needs | (NO_EVENTS if has_device else analyzer.needs_without_device)
        kind = analyzer.partial_kind()
        expected = value(analyzer, needs)
        for event in Events:
            if event not in needs | analyzer.varies_with:
                other = value(analyzer, needs | event)
                assert other == expected or pack_value(other, kind) == pack_value(expected, kind), (
                    analyzer.name,
                    event,
                )


def test_partials_stand_beside_their_trace() -> None:
    assert partials_path("a/b.pt.trace.json.gz") == partials_path("a/b.pt.trace.json") == "a/b.pt.trace.partials"
