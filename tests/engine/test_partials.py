"""Partials of real traces come back from a file as they were measured, within their share of the trace."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from msgspec.structs import replace

from perfscope.commands.profile.completion import _summarize_run
from perfscope.engine import measuring, partials
from perfscope.engine.measuring import measure
from perfscope.engine.partials import get, load, put, storable, to_content
from perfscope.engine.registry import BUILT_IN, Analyzer, Reads
from perfscope.engine.tasks import MeasuredTrace, MeasureTask
from perfscope.engine.windows import TraceFiles
from perfscope.sources.partials import Identity, Refused, Unstorable, pack_value
from perfscope.sources.traces.files import find_traces
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import BASIC_EVENTS, NO_EVENTS, Events, Trace
from perfscope.wire.traces import partials_path
from tests.aggregation.test_tables import largest_file
from tests.conftest import ROOT

FIXTURES = ROOT / "fixtures"
MEASURING = [analyzer for analyzer in BUILT_IN if analyzer.reads is not Reads.RUN and analyzer.partials_of is None]
#: Those of a run that recorded neither modules nor shapes.
NAMES = tuple(analyzer.name for analyzer in MEASURING if analyzer.is_stored and analyzer.recorded_by is None)
TRACES = (
    "traces/ddp4/rank0.pt.trace.json.gz",
    "traces/single/rank0.pt.trace.json.gz",
    "traces/gloo2/rank0.pt.trace.json.gz",
    "pipeline/ds_pp2_m8/rank0.pt.trace.json.gz",
    "modules/resnet50/rank0.json.gz",
)
TASK = MeasureTask(NAMES)


@cache
def measured(name: str) -> MeasuredTrace:
    return measure(TraceFiles(str(FIXTURES / name)), TASK)


def written(name: str, folder: Path) -> Path:
    """A copy of a trace with its partials."""
    trace = Path(shutil.copy(FIXTURES / name, folder))
    measure(TraceFiles(str(trace)), replace(TASK, stores=True))
    assert Path(partials_path(str(trace))).is_file()
    return trace


@pytest.mark.parametrize("analyzer", MEASURING, ids=lambda analyzer: analyzer.name)
def test_the_partials_of_every_analyzer_have_a_type_that_can_be_read(analyzer: Analyzer) -> None:
    assert pack_value(None, analyzer.partial_kind() | None)  # type: ignore[operator]


def test_threads_decode_types_that_no_one_met_before() -> None:
    """msgspec ends a process whose threads resolve the same type at once, so this runs in one of its own."""
    script = """
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
import msgspec
from perfscope.sources.partials import unpack_value
sys.setswitchinterval(1e-6)
with ThreadPoolExecutor(8) as threads:
    for number in range(20):
        fields = [(f"a{n}", "int | None", None) for n in range(40)]
        inner = msgspec.defstruct(f"Inner{number}", fields, module="__main__")
        setattr(sys.modules["__main__"], inner.__name__, inner)
        fields = [(f"b{n}", f"list[{inner.__name__}]", []) for n in range(20)]
        outer = msgspec.defstruct(f"Outer{number}", fields, module="__main__")
        content, barrier = msgspec.msgpack.encode({"b3": [{"a1": 1}]}), Barrier(8)
        list(threads.map(lambda _: (barrier.wait(), unpack_value(content, outer)), range(8)))
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@pytest.mark.parametrize("name", TRACES)
def test_what_is_read_is_what_was_measured(name: str, tmp_path: Path) -> None:
    trace = written(name, tmp_path)
    (tmp_path / "moved").mkdir()
    moved = trace.rename(tmp_path / "moved" / trace.name)
    Path(partials_path(str(trace))).rename(partials_path(str(moved)))
    files = TraceFiles(str(moved))
    expected = measure(files, TASK)
    again, lacking = get(files, TASK, frozenset())
    assert (again.summary, again.damage, again.activities) == (expected.summary, expected.damage, expected.activities)
    stored = set(NAMES) - set(lacking)
    assert again.partials
    assert set(again.partials) == stored & set(expected.partials)
    for analyzer in MEASURING:
        if analyzer.name in again.partials:
            kind = analyzer.partial_kind()
            assert pack_value(again.partials[analyzer.name], kind) == pack_value(expected.partials[analyzer.name], kind)


def test_what_was_measured_of_a_trace_that_is_replaced_meanwhile_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(shutil.copy(FIXTURES / TRACES[0], tmp_path))
    read = measuring.read_files

    def read_and_replace(files: TraceFiles, task: MeasureTask) -> Trace:
        whole = read(files, task)
        other = path.with_name("other.tmp")
        other.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()).replace(b'"dur": 1', b'"dur": 2')))
        other.replace(path)
        return whole

    monkeypatch.setattr(measuring, "read_files", read_and_replace)
    assert measure(TraceFiles(str(path)), replace(TASK, stores=True)).summary is not None
    with pytest.raises(Refused, match="is of another trace"):
        get(TraceFiles(str(path)), TASK, frozenset())


def test_a_full_disk_leaves_no_half_file(tmp_path: Path) -> None:
    path = Path(shutil.copy(FIXTURES / TRACES[0], tmp_path))
    with largest_file(1000):
        measure(TraceFiles(str(path)), replace(TASK, stores=True))
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
@pytest.mark.parametrize("writes_page", [False, True])
def test_the_analysis_that_ends_a_profile_stores_partials(tmp_path: Path, *, writes_page: bool) -> None:
    run = Path(shutil.copytree(FIXTURES / "runs" / "h200_zero2", tmp_path / "run"))
    _summarize_run(run, writes_page=writes_page)
    traces = find_traces([str(run / "traces")])
    assert len(traces) == 2
    for trace in traces:
        assert storable(frozenset()) <= load(partials_path(trace)).partials.keys()


def test_partials_of_another_version_or_other_code_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = partials_path(str(written(TRACES[2], tmp_path)))
    with monkeypatch.context() as patch:
        patch.setattr(partials, "__version__", "9.9")
        with pytest.raises(Refused, match="perfscope 0"):
            load(path)
    monkeypatch.setattr(partials, "fingerprint", lambda: "other")
    with pytest.raises(Refused, match="other code"):
        load(path)


def test_a_trace_that_could_not_be_measured_is_not_stored(tmp_path: Path) -> None:
    files = TraceFiles(str(tmp_path / "none.json"))
    assert not put(files, measure(files, TASK), TASK, (Identity("a", 1, "0"),))
    broken = replace(measured(TRACES[2]), failed={"idle": "It could not be measured."})
    with pytest.raises(Unstorable):
        to_content(broken, TraceFiles(broken.path), NAMES, BASIC_EVENTS, (Identity("a", 1, "0"),))


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
