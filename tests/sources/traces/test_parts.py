"""A trace whose parts are read apart gives what a reading in one piece gives, wherever it is cut."""

from __future__ import annotations

import dataclasses
import gzip
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import count, pairwise, product
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import pytest
from msgspec import Struct, structs

from perfscope import forks
from perfscope.engine.analysis_report import to_report
from perfscope.engine.execution import Backend, Execution
from perfscope.engine.measuring import measure
from perfscope.engine.registry import Reads, analyzers
from perfscope.engine.run import Plan, analyze
from perfscope.engine.tasks import MeasuredTrace, Task
from perfscope.engine.windows import TraceFiles
from perfscope.forks import NoAnswer
from perfscope.hooks.profiler.compress import write_parts
from perfscope.renderers import Format, render
from perfscope.sources.traces import apart, reader, shares
from perfscope.sources.traces.collecting import Collector, Request
from perfscope.sources.traces.layout import find_layout, start_of_events
from perfscope.sources.traces.parts import PartsDiffer, inflate_parts, read_parts
from perfscope.sources.traces.reader import read_trace
from perfscope.sources.traces.scan import DoesNotFit
from perfscope.sources.traces.shares import Text, divide_text
from perfscope.tables.trace import BASIC_EVENTS, Events, Trace
from perfscope.wire.trace_parts import EXTRA_FIELD, GZIP_HEADER, INDEX, PART
from tests.sources.traces.making import call, document, in_microseconds, kernel, kineto, span

_FIXTURES = Path("fixtures")
_MEASURED = BASIC_EVENTS | Events.OPERATOR_TIMES | Events.CALLERS | Events.PRODUCTS
#: Every analyzer of traces but those that ask for the inputs of operators, for which a trace is read as one stream.
_READS_TRACES = tuple(
    analyzer.name
    for analyzer in analyzers()
    if analyzer.reads is not Reads.RUN
    and not analyzer.partials_of
    and not (analyzer.needs | analyzer.needs_without_device) & (Events.SEQUENCES | Events.SHAPES)
)
#: Traces of as many exporters and kinds of training as there are; the largest ones have tests of their own.
_TRACES = sorted(
    path
    for path in _FIXTURES.rglob("*.pt.trace.json.gz")
    if path.stat().st_size < 400_000 and "light_ddp" not in path.parts
)


class HereAndNow:
    """A forked process that is this one, and has answered before it is asked."""

    def __init__(self, work: Callable[[], object]) -> None:
        with TemporaryFile() as file:
            forks._write(file.fileno(), work())
            self._answer = forks._read(file.fileno())

    def answer(self) -> object:
        return self._answer


@contextmanager
def no_processes(work: Callable[[], object], count: int) -> Iterator[list[HereAndNow]]:
    yield [HereAndNow(work) for _ in range(count)]


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Traces and their shares may have any size; what is listed are the traces that were read apart."""
    paths: list[str] = []
    collect = apart.collect_apart

    def note(text: Text, *arguments: Any) -> None:
        collect(text, *arguments)
        paths.append(text.path)

    monkeypatch.setattr(reader, "can_fork", lambda: True)  # threads of other tests in this process forbid it
    monkeypatch.setattr(apart, "forked", no_processes)
    monkeypatch.setattr(shares, "_LEAST_BYTES", 0)
    monkeypatch.setattr(shares, "_LEAST_COMPRESSED_BYTES", 0)
    monkeypatch.setattr(reader, "collect_apart", note)
    return paths


def differences(first: object, second: object, where: str = "") -> list[str]:
    """Where two values differ in content or type."""
    if type(first) is not type(second):
        return [f"{where}: {type(first)} and {type(second)}"]
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        return [] if first.dtype == second.dtype and np.array_equal(first, second) else [where]
    if isinstance(first, Struct) or dataclasses.is_dataclass(first):
        pairs = [(name, getattr(first, name), getattr(second, name)) for name in fields_of(first)]
    elif isinstance(first, Mapping) and isinstance(second, Mapping):
        if list(first) != list(second):
            return [f"{where}: keys {list(first)} and {list(second)}"]
        pairs = [(str(key), first[key], second[key]) for key in first]
    elif isinstance(first, Sequence) and not isinstance(first, str | bytes):
        assert isinstance(second, Sequence)
        if len(first) != len(second):
            return [f"{where}: {len(first)} and {len(second)} items"]
        pairs = [(str(row), one, other) for row, (one, other) in enumerate(zip(first, second, strict=True))]
    else:
        return [] if repr(first) == repr(second) or first == second else [f"{where}: {first} and {second}"]
    return [line for name, one, other in pairs for line in differences(one, other, f"{where}.{name}")]


def fields_of(value: Any) -> tuple[str, ...]:
    if isinstance(value, Struct):
        return value.__struct_fields__
    return tuple(field.name for field in dataclasses.fields(value))


def compress(text: bytes, path: Path, part_bytes: int) -> Path:
    plain = path.with_suffix("")
    plain.write_bytes(text)
    with plain.open("rb") as source, path.open("wb") as target:
        write_parts(source, target, part_bytes)
    plain.unlink()
    return path


def measured(path: Path, processes: int) -> MeasuredTrace:
    return measure(TraceFiles(str(path)), Task(_READS_TRACES, Events.WAITS | Events.GRIDS, processes=processes))


def text_of(name: str) -> bytes:
    return gzip.decompress((_FIXTURES / name).read_bytes())


@pytest.mark.parametrize("source", _TRACES, ids=lambda path: "/".join(path.parts[1:]))
def test_every_trace_is_that_of_one_stream(
    source: Path, tmp_path: Path, joined: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = gzip.decompress(source.read_bytes())
    layout = find_layout(text, start_of_events(text) or 0)
    assert layout is not None
    (tmp_path / "plain.json").write_bytes(text)
    monkeypatch.setattr(shares, "_SLICE_BYTES", len(text) // 37 | 1)
    monkeypatch.setattr(shares, "READ_BYTES", source.stat().st_size // 37 | 1)
    for path in compress(text, tmp_path / source.name, len(text) // 37 | 1), source, tmp_path / "plain.json":
        joined.clear()
        alone = read_trace(path, _MEASURED)
        assert not joined
        assert differences(read_trace(path, _MEASURED, processes=3), alone) == []
        divided = divide_text(str(path), 3)
        assert divided is not None
        with closing(divided):
            pieces = [b"".join(divided.share(number)) for number in range(divided.count)]
        assert b"".join(pieces) == text
        is_readable = layout.is_unambiguous and all(layout.separator in piece for piece in pieces)
        assert joined == [str(path)] * is_readable


@pytest.mark.parametrize("source", _TRACES[:: len(_TRACES) // 12], ids=lambda path: "/".join(path.parts[1:]))
def test_measurements_are_those_of_one_stream(
    source: Path, tmp_path: Path, joined: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = gzip.decompress(source.read_bytes())
    path = compress(text, tmp_path / source.name, len(text) // 13 | 1)
    one = measured(path, 1)
    assert differences(measured(path, 3), one) == []
    assert one.summary is not None


#: A process of its own has no threads of other tests, beside which nothing is forked.
_WITH_REAL_PROCESSES = """
import sys
from pathlib import Path
from perfscope.sources.traces import apart, reader, shares
from tests.sources.traces.test_parts import differences, measured
shares._LEAST_BYTES = shares._LEAST_COMPRESSED_BYTES = 0
shares.READ_BYTES, shares._SLICE_BYTES = 1 << 15, 1 << 19
joined, collect = [], apart.collect_apart
reader.collect_apart = lambda text, *arguments: (collect(text, *arguments), joined.append(text.path))
for path in map(Path, sys.argv[1:]):
    alone = measured(path, 1)
    assert not joined
    for processes in (2, 4):
        assert differences(measured(path, processes), alone) == []
        assert joined and set(joined) == {str(path)}
        joined.clear()
"""


def test_real_processes_give_what_one_process_gives(tmp_path: Path) -> None:
    name = "traces/ddp4/rank0.pt.trace.json.gz"
    path = compress(text_of(name), tmp_path / "rank0.pt.trace.json.gz", 100_003)
    plain = tmp_path / "rank0.json"
    plain.write_bytes(text_of(name))
    subprocess.run([sys.executable, "-c", _WITH_REAL_PROCESSES, path, _FIXTURES / name, plain], check=True)


def test_what_is_read_apart_is_what_is_read_from_the_original_file(tmp_path: Path, joined: list[str]) -> None:
    source = _FIXTURES / "traces/single/rank0.pt.trace.json.gz"
    path = compress(gzip.decompress(source.read_bytes()), tmp_path / source.name, 200_001)
    original = structs.replace(read_trace(source, _MEASURED), path="")
    assert differences(structs.replace(read_trace(path, _MEASURED, processes=2), path=""), original) == []
    assert joined


def few_events() -> bytes:
    """Events of every kind that is read, with names that look like the borders between events."""
    shapes = {"Input Dims": [[64, 32], [32, 16]], "Input type": ["float", "float"]}
    collective: Any = {"Collective name": "allreduce"}
    events = []
    for row in range(6):
        at = 10_000 * row + 1_000
        events += [
            span("cpu_op", "aten::mm", at, at + 900, args={"External id": row, **shapes}),
            span("cpu_op", "aten::item", at + 1_000, at + 1_900, args={"External id": row + 100}),
            span("cpu_op", "aten::_local_scalar_dense", at + 1_000, at + 1_900, args={"External id": row + 200}),
            span("user_annotation", 'a "name" }, { "ph": "X", "cat": "kernel" \\', at, at + 3_000),
            call("cudaLaunchKernel", at + 100, at + 200, launch=row),
            call("cudaLaunchKernel", at + 100, at + 200, launch=row + 50),
            kernel(f"gemm<{row}, {{}}>", at + 300, at + 800, launch=row),
            kernel("ncclDevKernel_AllReduce", at + 800, at + 900, launch=row + 50, **collective),
        ]
    return in_microseconds(kineto(document(events))).encode()


def collected(text: bytes, request: Request, *cuts: int) -> list[object]:
    """Everything that is collected of a text that is cut at some places."""
    borders = [text.index(b"{", start_of_events(text) or 0), *cuts, len(text)]
    first, *others = [text[begin:end] for begin, end in pairwise(borders)]
    collector = Collector(request)
    collector.collect([first])
    for other in others:
        collector.absorb(Collector(request).collect_stretch(iter([other])))
    end, columns = collector.finish(), collector.columns
    assert collector.finder
    return [
        end, collector.events, collector.lost, columns.sorted_names, columns.device_events(), columns.collectives,
        columns.host_spans(Events.CALLS), columns.host_spans(Events.ANNOTATIONS), columns.callers(),
        columns.in_operators(), columns.groups, columns.dropped, collector.finder.products(),
    ]  # fmt: skip


def test_a_cut_at_any_byte_changes_nothing() -> None:
    text = few_events()
    start = start_of_events(text) or 0
    layout = find_layout(text, start)
    assert layout is not None
    assert layout.is_unambiguous
    request = Request(_MEASURED, layout, fits=True)
    whole = collected(text, request)
    assert whole[1] == text.count(b'"ph"')
    borders = [match.start() for match in re.finditer(re.escape(layout.separator), text)]
    for position in range(borders[7] - 1, borders[17] + len(layout.separator)):
        assert differences(collected(text, request, position), whole) == [], position
    for first, second in product(range(borders[8], borders[10], 41), range(borders[20], borders[22], 43)):
        assert differences(collected(text, request, first, second), whole) == [], (first, second)


def test_text_without_a_border_between_events_is_not_read_apart() -> None:
    text = few_events()
    start = start_of_events(text) or 0
    layout = find_layout(text, start)
    assert layout is not None
    with pytest.raises(DoesNotFit):
        Collector(Request(_MEASURED, layout, fits=True)).collect_stretch(iter([b'"name": "no end"']))


@pytest.fixture
def parted(tmp_path: Path) -> Path:
    return compress(text_of("traces/gloo2/rank0.pt.trace.json.gz"), tmp_path / "rank0.pt.trace.json.gz", 50_021)


def as_one_stream(path: Path) -> Trace:
    return read_trace(path, _MEASURED)


def test_an_index_says_what_each_part_holds(parted: Path) -> None:
    text = gzip.decompress(parted.read_bytes())
    parts = read_parts(str(parted))
    assert len(parts) == -(-len(text) // 50_021)
    assert sum(part.length for part in parts) == len(text)
    assert b"".join(inflate_parts(str(parted), parts)) == text
    for part, begin in zip(parts, count(0, 50_021), strict=False):
        assert b"".join(inflate_parts(str(parted), [part])) == text[begin : begin + 50_021]


def test_foreign_files_have_no_parts(tmp_path: Path) -> None:
    text = few_events()
    for name, content in {
        "plain.json": text,
        "stream.json.gz": gzip.compress(text),
        "members.json.gz": gzip.compress(text[:500]) + gzip.compress(text[500:]),
        "empty.json.gz": b"",
        "short.json.gz": GZIP_HEADER,
    }.items():
        (tmp_path / name).write_bytes(content)
        assert read_parts(str(tmp_path / name)) == ()


def damaged(content: bytes) -> Iterator[bytes]:
    """A file that is cut at many places, that has something behind it, and whose index is damaged."""
    begin = len(GZIP_HEADER) + EXTRA_FIELD.size
    for length in (5, begin, begin + 3, begin + INDEX.size + 11, len(content) // 2, len(content) - 9, len(content) - 1):
        yield content[:length]
    yield content + b"\0"
    yield content + gzip.compress(b"more")
    for position in (*range(begin - 6, begin + INDEX.size + 2 * PART.size), len(content) - 9, len(content) - 5, -1):
        yield content[:position] + bytes([content[position] ^ 1]) + content[position:][1:]


def test_an_index_that_disagrees_with_its_file_is_not_believed(parted: Path, joined: list[str]) -> None:
    content = parted.read_bytes()
    for wrong in damaged(content):
        parted.write_bytes(wrong)
        parts = read_parts(str(parted))
        if parts:  # a checksum or a length of a part may be wrong in itself
            with pytest.raises(PartsDiffer):
                list(inflate_parts(str(parted), parts))
    assert not joined


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_damage_is_said_as_of_one_stream(parted: Path, joined: list[str], share: float) -> None:
    content = parted.read_bytes()
    position = int(len(content) * share)
    for wrong in (content[:position], content[:position] + bytes([content[position] ^ 8]) + content[position + 1 :]):
        parted.write_bytes(wrong)
        alone = as_one_stream(parted)
        assert alone.damage
        assert differences(read_trace(parted, _MEASURED, processes=3), alone) == []
        assert len(alone.names) > 0
    assert not joined


def test_a_part_that_inflates_without_end_is_not_read(
    tmp_path: Path, joined: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfscope.hooks.profiler.compress._LEVEL", 9)
    path = compress(b'{"traceEvents": [' + b" " * 40_000_000, tmp_path / "bomb.json.gz", 1 << 21)
    assert read_parts(str(path)) == ()


def test_what_is_asked_of_operators_inputs_is_read_as_one_stream(parted: Path, joined: list[str]) -> None:
    read_trace(parted, _MEASURED | Events.OPERATORS | Events.SHAPES, processes=3)
    assert not joined
    read_trace(parted, _MEASURED | Events.OPERATORS, processes=3)
    assert joined


def test_a_process_without_an_answer_costs_nothing(
    parted: Path, joined: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_off(_: HereAndNow) -> object:
        raise NoAnswer

    monkeypatch.setattr(HereAndNow, "answer", break_off)
    assert differences(read_trace(parted, _MEASURED, processes=3), as_one_stream(parted)) == []
    assert not joined


def test_no_process_is_forked_beside_another_thread(
    parted: Path, joined: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "can_fork", lambda: False)
    assert differences(read_trace(parted, _MEASURED, processes=3), as_one_stream(parted)) == []
    assert not joined


def test_a_small_trace_is_read_in_one_process(parted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "collect_apart", pytest.fail)
    read_trace(parted, _MEASURED, processes=8)


def test_the_whole_answer_is_the_same_for_any_number_of_processes(
    tmp_path: Path, joined: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = compress(text_of("traces/ddp4/rank0.pt.trace.json.gz"), tmp_path / "rank0.pt.trace.json.gz", 300_007)
    answers = []
    for workers in (1, 4):
        plan = Plan(execution=Execution(Backend.PROCESS, workers))
        answers.append([render(to_report(analyze([path], plan)), to) for to in (Format.JSON, Format.MARKDOWN)])
    assert answers[0] == answers[1]
    assert set(joined) == {str(path)}
