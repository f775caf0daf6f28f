"""Full files of records are put aside and compressed, and read as if they were one, also after very many steps."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from perfscope import wire
from perfscope.hooks import record_files
from perfscope.hooks.capture import Capture
from perfscope.hooks.config import Config
from perfscope.hooks.open_window import OPEN_WINDOW
from perfscope.hooks.rank_files import Recorder
from perfscope.hooks.selection import parse_windows
from perfscope.sources.runs.records import decode_step
from perfscope.sources.runs.step_columns import StepColumns, from_records, read_step_columns
from perfscope.wire.host import DeviceProbe, HostWaits, HostWork
from perfscope.wire.records import Span, StepRecord, to_line


def some_records(count: int) -> list[StepRecord]:
    """Records in which each optional field is absent from some."""
    records = []
    for step in range(1, count + 1):
        end_ns = 10**12 + step * 10**9
        optional: dict[str, Any] = {
            "window": "profiled" if step % 3 else None,
            "skipped": None if step % 5 else True,
            "data_wait_ns": step * 1000 if step % 4 else None,
            "loss_scale": 65536.0 if step % 2 else None,
            "host": HostWork(*range(step, step + len(HostWork._fields))) if step > 1 else None,
            "waits": HostWaits(step, 0),
            "probe": DeviceProbe(step, 1, None, 3, step) if step % 7 else None,
            "spans": (Span(wire.GARBAGE, end_ns - 500, end_ns - 100),) if step % 6 else None,
        }
        records.append(StepRecord(step, end_ns, "optimizer", wall_ns=step, **optional))
    return records


def to_lines(records: list[StepRecord]) -> bytes:
    return b"".join(to_line(record) for record in records)


def assert_same(ours: StepColumns, expected: StepColumns) -> None:
    assert ours.rows == expected.rows
    assert ours.numbers.keys() == expected.numbers.keys()
    for name in expected.numbers:
        assert ours.number(name).tolist() == expected.number(name).tolist(), name
    assert ours.texts["window"].tolist() == expected.texts["window"].tolist()
    assert ours.flags["skipped"].tolist() == expected.flags["skipped"].tolist()
    assert (ours.spans, ours.probes) == (expected.spans, expected.probes)


def test_all_files_of_a_process_are_one_table_of_what_the_records_hold(tmp_path: Path) -> None:
    records = some_records(30)
    (tmp_path / "steps.000001.jsonl.gz").write_bytes(gzip.compress(to_lines(records[:10])))
    (tmp_path / "steps.000001.jsonl").write_bytes(to_lines(records[:10]))  # it was killed before it removed the lines
    (tmp_path / "steps.000002.jsonl").write_bytes(to_lines(records[10:20]))  # not compressed yet
    (tmp_path / "steps.jsonl").write_bytes(to_lines(records[20:]))
    (tmp_path / "steps.000002.jsonl.gz.tmp").write_bytes(b"half")
    damage: list[str] = []
    columns = read_step_columns(tmp_path, damage)
    assert not damage
    assert_same(columns, from_records(records))
    assert columns.number("data_wait_ns").tolist() == [record.data_wait_ns for record in records]
    assert columns.number("host.0").tolist() == [None if r.host is None else r.host.cpu_ns for r in records]
    assert "tokens" not in columns.numbers


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("steps.000001.jsonl.gz", gzip.compress(to_lines(some_records(20)))[:-40]),
        ("steps.000001.jsonl", b'{"step":2,"end_ns":%d,"source":"optimizer"}\n' % 10**40),
        ("steps.000001.jsonl", b"[" * 10**6),
        ("steps.000001.jsonl", b'{"step":2,"end'),
    ],
)
def test_damage_is_named_and_costs_no_other_step(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    (tmp_path / "steps.jsonl").write_bytes(to_line(StepRecord(21, 10**15, "optimizer")))
    damage: list[str] = []
    assert read_step_columns(tmp_path, damage).whole("step").tolist() == [21]
    assert len(damage) == 1


def resident_mb() -> float:
    """Memory of this process that no file backs."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon:"))


def test_many_steps_need_no_more_memory_and_little_space(tmp_path: Path) -> None:
    capture = Capture(Config(str(tmp_path), parse_windows("2000000"), nvml_hz=0))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    batch = [torch.zeros(8, 1024, dtype=torch.long)]
    before_mb = 0.0
    for step in range(1, 20_001):
        capture.on_batch_loaded(batch, 50_000)
        capture.on_gradients_cleared(optimizer)
        capture.on_forward((batch[0],), {})
        capture.on_optimizer_step(optimizer)
        if step % 512 == 0:
            capture.files.claim().late.flush()
        if step == 9_000:
            before_mb = resident_mb()
    assert resident_mb() - before_mb < 8
    capture.files.close()
    folder = tmp_path / "ranks" / "00000"
    assert sorted(path.name for path in folder.glob("steps*")) == ["steps.000001.jsonl.gz", "steps.jsonl"]
    assert (folder / "steps.000001.jsonl.gz").stat().st_size < record_files.LARGEST_BYTES / 2
    assert read_step_columns(folder, []).whole("step").tolist() == list(range(1, 20_001))


def write_steps(folder: Path) -> list[int]:
    """Record twenty steps; those in the file of the last ones."""
    recorder = Recorder(str(folder), 0)
    for step in range(1, 21):
        recorder.late.append((recorder.steps_file, to_line, (StepRecord(step, step, "optimizer"),)))
        recorder.late.flush()
        last = (folder / "ranks/00000/steps.jsonl").read_bytes().splitlines()[-1]
        assert decode_step(last).step == step, "who looks at a running job reads the end of this file"
    recorder.late.close()
    return [decode_step(line).step for line in (folder / "ranks/00000/steps.jsonl").read_bytes().splitlines()]


@pytest.mark.parametrize("obstacle", ["rename", "replace", "window", None])
def test_a_file_that_cannot_be_put_aside_goes_on_and_none_is_in_a_window(
    obstacle: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_paths: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(record_files, "LARGEST_BYTES", 5 * len(to_line(StepRecord(1, 1, "optimizer"))))
    if obstacle == "window":
        monkeypatch.setattr(OPEN_WINDOW, "is_open", True)
    elif obstacle is not None:
        monkeypatch.setattr(os, obstacle, fail)
    is_aside = obstacle in ("replace", None)
    assert write_steps(tmp_path) == list(range(16 if is_aside else 1, 21))
    aside = sorted(path.name for path in (tmp_path / "ranks/00000").glob("steps.0*"))
    ending = "" if obstacle == "replace" else ".gz"
    assert aside == ([f"steps.00000{number}.jsonl{ending}" for number in (1, 2, 3)] if is_aside else [])
    assert read_step_columns(tmp_path / "ranks/00000", []).whole("step").tolist() == list(range(1, 21))
