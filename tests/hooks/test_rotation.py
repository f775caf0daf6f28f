"""Full files of records are put aside and compressed, and read as if they were one."""

from __future__ import annotations

import gzip
import os
import random
import time
from pathlib import Path

import pytest

from perfscope import wire
from perfscope.hooks import gzip_files, late_writer, record_files
from perfscope.hooks.gzip_files import GzipFiles
from perfscope.hooks.open_window import OPEN_WINDOW
from perfscope.hooks.recorder import Recorder
from perfscope.sources.runs.records import decode_step
from perfscope.sources.runs.step_columns import StepColumns, from_records, read_last_step, read_step_columns
from perfscope.wire.host import DeviceProbe, HostWaits, HostWork
from perfscope.wire.records import Span, StepRecord, to_line


def random_records(count: int, seed: int = 3) -> list[StepRecord]:
    source = random.Random(seed)
    end_ns = 10**12
    records = []
    for step in range(1, count + 1):
        end_ns += source.randint(10**6, 10**9)
        optional = {
            "window": source.choice([None, None, "profiled"]),
            "skipped": source.choice([None, None, True]),
            "data_wait_ns": source.choice([None, source.randint(0, 10**8)]),
            "save_ns": source.choice([None, None, 10**9]),
            "loss_scale": source.choice([None, 65536.0]),
            "iteration": step + 400,
            "host": HostWork(*(source.randint(0, 10**7) for _ in HostWork._fields)) if step > 1 else None,
            "waits": HostWaits(source.randint(0, 10**7), 0),
            "probe": source.choice([None, DeviceProbe(step, 1, None, 3, source.randint(1, 10**6))]),
            "spans": source.choice([None, (Span(wire.GARBAGE, end_ns - 500, end_ns - 100),)]),
        }
        records.append(StepRecord(step, end_ns, "optimizer", wall_ns=source.randint(1, 10**6), **optional))  # type: ignore[arg-type]
    return records


def to_lines(records: list[StepRecord]) -> bytes:
    return b"".join(to_line(record) for record in records)


def assert_same(ours: StepColumns, expected: StepColumns) -> None:
    assert ours.rows == expected.rows
    assert ours.numbers.keys() == expected.numbers.keys()
    for name in expected.numbers:
        assert ours.number(name).tolist() == expected.number(name).tolist(), name
    for name in ("source", "window"):
        assert ours.texts[name].tolist() == expected.texts[name].tolist()
    for name in ("skipped", "draining"):
        assert ours.flags[name].tolist() == expected.flags[name].tolist()
    assert (ours.spans, ours.probes) == (expected.spans, expected.probes)


def test_columns_hold_what_the_records_do() -> None:
    records = random_records(50)
    columns = from_records(records)
    for name in ("data_wait_ns", "save_ns", "tokens"):
        assert columns.number(name).tolist() == [getattr(record, name) for record in records]
    assert columns.number("host.0").tolist() == [None if r.host is None else r.host.cpu_ns for r in records]
    assert columns.texts["window"].tolist() == [record.window or "" for record in records]
    assert "tokens" not in columns.numbers


def test_all_files_of_a_process_are_one_table(tmp_path: Path) -> None:
    records = random_records(30)
    (tmp_path / "steps.000001.jsonl.gz").write_bytes(gzip.compress(to_lines(records[:10])))
    (tmp_path / "steps.000001.jsonl").write_bytes(to_lines(records[:10]))  # it was killed before it removed the lines
    (tmp_path / "steps.000002.jsonl").write_bytes(to_lines(records[10:20]))  # not compressed yet
    (tmp_path / "steps.jsonl").write_bytes(to_lines(records[20:]))
    (tmp_path / "steps.000002.jsonl.gz.tmp").write_bytes(b"half")
    damage: list[str] = []
    columns = read_step_columns(tmp_path, damage)
    assert not damage
    assert_same(columns, from_records(records))


def test_a_damaged_file_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "steps.000001.jsonl.gz"
    path.write_bytes(gzip.compress(to_lines(random_records(20)))[:-40])
    (tmp_path / "steps.jsonl").write_bytes(to_line(StepRecord(21, 10**15, "optimizer")))
    damage: list[str] = []
    assert read_step_columns(tmp_path, damage).whole("step").tolist() == [21]
    assert damage == [f"{tmp_path.name}/steps.000001.jsonl.gz: cannot be read"]


@pytest.mark.parametrize(
    "line", [b'{"step":2,"end_ns":%d,"source":"optimizer"}' % 10**40, b"[" * 10**6, b'{"step":2,"end']
)
def test_a_line_of_another_kind_costs_no_other_step(line: bytes, tmp_path: Path) -> None:
    (tmp_path / "steps.jsonl").write_bytes(to_line(StepRecord(1, 10, "optimizer")) + line + b"\n")
    damage: list[str] = []
    assert read_step_columns(tmp_path, damage).whole("step").tolist() == [1]
    assert len(damage) == 1


def test_the_last_step_is_that_of_the_last_line(tmp_path: Path) -> None:
    assert read_last_step(tmp_path) == 0
    (tmp_path / wire.STEPS_FILE).write_bytes(to_line(StepRecord(5, 50, "optimizer")))
    assert read_last_step(tmp_path) == 5


def test_a_file_is_compressed_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gzip_files, "_PIECE_BYTES", 1000)
    contents = [to_lines(random_records(40, seed)) for seed in (1, 2)]
    full = GzipFiles()
    for number, content in enumerate(contents):
        (tmp_path / f"{number}.jsonl").write_bytes(content)
        full.add(str(tmp_path / f"{number}.jsonl"))
    turns = 0
    while list(tmp_path.glob("*.jsonl")):
        full.advance(1)
        turns += 1
    assert turns > 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.jsonl.gz", "1.jsonl.gz"]
    for number, content in enumerate(contents):
        assert gzip.decompress((tmp_path / f"{number}.jsonl.gz").read_bytes()) == content
    full.advance(1)


def test_a_compressed_file_that_does_not_fit_on_the_disk_leaves_the_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "steps.000001.jsonl").write_bytes(to_lines(random_records(4)))
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("no space")))
    full = GzipFiles()
    full.add(str(tmp_path / "steps.000001.jsonl"))
    full.advance(9)
    assert [path.name for path in tmp_path.iterdir()] == ["steps.000001.jsonl"]


def test_a_recorder_puts_full_files_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_files, "LINES", 100)
    monkeypatch.setattr(late_writer, "FIRST_PERIOD_S", 0.05)
    recorder = Recorder(str(tmp_path), 0)
    recorder.late.start()
    folder = Path(recorder.folder)
    for step in range(1, 351):
        recorder.late.append((recorder.steps_file, to_line, (StepRecord(step, step * 10**6, "optimizer"),)))
        if step % 10 == 0:
            recorder.late.flush()
            last = (folder / wire.STEPS_FILE).read_bytes().splitlines()[-1]
            assert decode_step(last).step == step, "who looks at a running job reads the end of this file"
    until_s = time.monotonic() + 30
    while list(folder.glob("*.0*.jsonl")) and time.monotonic() < until_s:
        time.sleep(0.02)
    recorder.close()
    names = sorted(path.name for path in folder.glob("steps*"))
    assert names == [*(f"steps.00000{number}.jsonl.gz" for number in (1, 2, 3)), "steps.jsonl"]
    assert read_step_columns(folder, []).whole("step").tolist() == list(range(1, 351))


def test_no_file_is_put_aside_in_a_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_files, "LINES", 5)
    monkeypatch.setattr(OPEN_WINDOW, "is_open", True)
    recorder = Recorder(str(tmp_path), 0)
    for step in range(1, 21):
        recorder.steps_file.append(to_line(StepRecord(step, step, "optimizer")))
    assert len((tmp_path / "ranks/00000/steps.jsonl").read_bytes().splitlines()) == 20


def test_a_folder_that_is_gone_does_not_end_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_files, "LINES", 5)
    monkeypatch.setattr(os, "rename", lambda *_: (_ for _ in ()).throw(OSError("no space")))
    recorder = Recorder(str(tmp_path), 0)
    for step in range(1, 21):
        recorder.late.append((recorder.steps_file, to_line, (StepRecord(step, step, "optimizer"),)))
        recorder.late.flush()
    recorder.close()
    lines = (tmp_path / "ranks/00000/steps.jsonl").read_bytes().splitlines()
    assert [decode_step(line).step for line in lines] == list(range(1, 21))
