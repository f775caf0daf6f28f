"""Full files of step records are put aside and packed, and read as if they were lines."""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
import zlib
from pathlib import Path

import numpy as np
import pytest

from perfscope import wire
from perfscope.hooks import pack_records, rotation
from perfscope.hooks.recorder import Recorder
from perfscope.sources.runs.micro_batches import read_micro_batches
from perfscope.sources.runs.packed import PackedNumbers
from perfscope.sources.runs.records import decode_step
from perfscope.sources.runs.step_columns import StepColumns, from_records, read_last_step, read_step_columns, unpack
from perfscope.tables.columns import Bool, Int64
from perfscope.wire.host import DeviceProbe, HostWaits, HostWork
from perfscope.wire.passes import MicroBatchRecord
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


def assert_same(ours: StepColumns, expected: StepColumns) -> None:
    assert ours.rows == expected.rows
    for name in {*ours.numbers, *expected.numbers}:
        mine, theirs = ours.number(name), expected.number(name)
        assert np.array_equal(np.ma.getmaskarray(mine), np.ma.getmaskarray(theirs)), name
        assert np.array_equal(np.ma.filled(mine, 0), np.ma.filled(theirs, 0)), name
    for name in ("source", "window"):
        assert ours.texts[name].tolist() == expected.texts[name].tolist()
    for name in ("skipped", "draining"):
        mine_flags = ours.flags.get(name, np.zeros(ours.rows, np.bool_))
        assert mine_flags.tolist() == expected.flags[name].tolist()
    assert ours.spans == expected.spans
    assert ours.probes == expected.probes


def without_probes(columns: StepColumns) -> StepColumns:
    numbers = {name: column for name, column in columns.numbers.items() if not name.startswith("probe")}
    return StepColumns(columns.rows, numbers, columns.texts, columns.flags, columns.spans, columns.probes)


def test_packed_records_are_the_same_records(tmp_path: Path) -> None:
    records = random_records(500)
    path = tmp_path / "steps.000001.jsonl"
    path.write_bytes(b"".join(to_line(record) for record in records))
    size = path.stat().st_size
    pack_records.pack(str(path))
    assert [file.name for file in tmp_path.iterdir()] == ["steps.000001.columns"]
    packed = (tmp_path / "steps.000001.columns").read_bytes()
    assert len(packed) < size / 3
    assert_same(without_probes(unpack(packed)), from_records(records))


@pytest.mark.parametrize("largest", [0, 127, 128, 2**15 - 1, 2**15, 2**31, 2**61])
@pytest.mark.parametrize("sign", [1, -1])
def test_numbers_of_any_size_are_the_same(largest: int, sign: int) -> None:
    values = [None, 0, 3, sign * largest, 7, None]
    packed = pack_records.to_packed([{"data_wait_ns": value} if value is not None else {} for value in values])
    assert unpack(packed).number("data_wait_ns").tolist() == values


def test_a_file_that_does_not_state_the_bytes_of_its_numbers_has_eight() -> None:
    planes = b"".join(np.asarray([5, 2**40, -1], "<i8").tobytes()[index::8] for index in range(8))
    header = {"schema": wire.PACKED_SCHEMA, "rows": 3, "codes": []}
    header["columns"] = [{"name": "step", "delta": False, "absent": False}]
    content = json.dumps(header).encode() + b"\n" + zlib.compress(planes + b"{}")
    assert unpack(content).number("step").tolist() == [5, 2**40, -1]


def test_all_files_of_a_process_are_one_table(tmp_path: Path) -> None:
    records = random_records(30)
    lines = [to_line(record) for record in records]
    (tmp_path / "steps.000001.jsonl").write_bytes(b"".join(lines[:10]))
    pack_records.pack(str(tmp_path / "steps.000001.jsonl"))
    (tmp_path / "steps.000001.jsonl").write_bytes(b"".join(lines[:10]))  # it was killed before it removed the lines
    (tmp_path / "steps.000002.jsonl").write_bytes(b"".join(lines[10:20]))  # not packed yet
    (tmp_path / "steps.jsonl").write_bytes(b"".join(lines[20:]))
    (tmp_path / "steps.000002.columns.tmp").write_bytes(b"half")
    damage: list[str] = []
    columns = read_step_columns(tmp_path, damage)
    assert not damage
    assert_same(without_probes(columns), from_records(records))


def test_a_damaged_file_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    records = random_records(20)
    path = tmp_path / "steps.000001.jsonl"
    path.write_bytes(b"".join(to_line(record) for record in records))
    pack_records.pack(str(path))
    packed = tmp_path / "steps.000001.columns"
    packed.write_bytes(packed.read_bytes()[:-40])
    (tmp_path / "steps.jsonl").write_bytes(to_line(StepRecord(21, 10**15, "optimizer")))
    damage: list[str] = []
    assert read_step_columns(tmp_path, damage).whole("step").tolist() == [21]
    assert damage == [f"{tmp_path.name}/steps.000001.columns: cannot be read"]


def test_no_damage_of_a_packed_file_changes_a_figure(tmp_path: Path) -> None:
    """Each byte in turn is another one, or is the last one: the file is named, or reads as it was."""
    records = random_records(40)
    folder = tmp_path / "ranks"
    folder.mkdir()
    whole = pack_records.to_packed([json.loads(to_line(record)) for record in records])
    expected = from_records(records)
    head = whole.index(b"\n") + 1
    unharmed = 0
    for at in range(head, len(whole)):
        for damaged in (whole[:at], whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :]):
            try:
                columns = unpack(damaged)
            except (ValueError, KeyError, TypeError):
                continue
            unharmed += 1
            assert_same(without_probes(columns), expected)
    assert unharmed < 40  # bits of zlib's own header that mean nothing


def test_a_packed_file_whose_columns_are_too_short_is_damaged() -> None:
    header = {"schema": wire.PACKED_SCHEMA, "rows": 1000, "codes": []}
    header["columns"] = [{"name": "step", "delta": False, "absent": False, "bytes": 8}]
    content = json.dumps(header).encode() + b"\n" + zlib.compress(bytes(80) + b"{}")
    with pytest.raises(ValueError, match="Expecting value"):
        unpack(content)


def test_only_what_is_asked_for_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [to_line(record) for record in random_records(300)]
    for number in range(3):
        path = tmp_path / f"steps.00000{number + 1}.jsonl"
        path.write_bytes(b"".join(lines[100 * number : 100 * number + 100]))
        pack_records.pack(str(path))
    (tmp_path / "steps.jsonl").write_bytes(b"")
    decoded: list[int] = []
    write = PackedNumbers.write

    def note(numbers: PackedNumbers, values: Int64, absent: Bool) -> None:
        decoded.append(numbers.at)
        write(numbers, values, absent)

    monkeypatch.setattr(PackedNumbers, "write", note)
    assert read_last_step(tmp_path) == 300
    probes = len(DeviceProbe._fields)
    assert len(decoded) == 1 + probes  # a column of the last file, and its probes
    decoded.clear()
    columns = read_step_columns(tmp_path, [])
    assert len(decoded) == 3 * probes
    assert columns.whole("step").tolist() == list(range(1, 301))
    assert len(decoded) == 3 * probes + 3


def test_the_last_step_is_also_that_of_a_killed_process(tmp_path: Path) -> None:
    assert read_last_step(tmp_path) == 0
    (tmp_path / wire.PENDING_STEPS_FILE).write_bytes(to_line(StepRecord(4, 40, "optimizer")))
    assert read_last_step(tmp_path) == 4
    (tmp_path / wire.STEPS_FILE).write_bytes(to_line(StepRecord(5, 50, "optimizer")))
    assert read_last_step(tmp_path) == 5


def test_half_a_line_is_not_packed(tmp_path: Path) -> None:
    path = tmp_path / "steps.000001.jsonl"
    path.write_bytes(b'{"step":1,"end')
    with pytest.raises(ValueError, match="Unterminated"):
        pack_records.pack(str(path))
    assert path.exists()


def test_a_recorder_puts_full_files_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "LINES", 100)
    recorder = Recorder(str(tmp_path), 0)
    descriptor = recorder.steps_file
    for step in range(1, 351):
        recorder.late.append((descriptor, to_line, (StepRecord(step, step * 10**6, "optimizer"),)))
        if step % 10 == 0:
            recorder.late.flush()
            last = (Path(recorder.folder) / wire.STEPS_FILE).read_bytes().splitlines()[-1]
            assert decode_step(last).step == step, "who looks at a running job reads the end of this file"
    recorder.close()  # what waits for the one process that packs goes to another
    assert recorder.steps_file == descriptor
    until_s = time.monotonic() + 30
    while list(Path(recorder.folder).glob("*.0*.jsonl")) and time.monotonic() < until_s:
        time.sleep(0.1)
    names = sorted(path.name for path in Path(recorder.folder).glob("steps*"))
    assert names == [*(f"steps.00000{number}.columns" for number in (1, 2, 3)), "steps.jsonl"]
    assert read_step_columns(Path(recorder.folder), []).whole("step").tolist() == list(range(1, 351))


def test_a_folder_that_is_gone_does_not_end_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "LINES", 5)
    monkeypatch.setattr(os, "rename", lambda *_: (_ for _ in ()).throw(OSError("no space")))
    recorder = Recorder(str(tmp_path), 0)
    for step in range(1, 21):
        recorder.late.append((recorder.steps_file, to_line, (StepRecord(step, step, "optimizer"),)))
        recorder.late.flush()
    recorder.close()
    lines = (tmp_path / "ranks/00000/steps.jsonl").read_bytes().splitlines()
    assert [decode_step(line).step for line in lines] == list(range(1, 21))


def test_the_packer_runs_by_itself_without_site_packages(tmp_path: Path) -> None:
    path = tmp_path / "steps.000001.jsonl"
    path.write_bytes(to_line(StepRecord(1, 1, "optimizer")))
    command = ["python3", "-I", "-S", str(Path(pack_records.__file__)), str(path)]
    subprocess.run(command, check=True, env={"PATH": os.environ["PATH"]})
    header = json.loads((tmp_path / "steps.000001.columns").read_bytes().split(b"\n", 1)[0])
    assert header["schema"] == wire.PACKED_SCHEMA == pack_records.SCHEMA
    assert wire.PACKED_SUFFIX == pack_records.PACKED_SUFFIX


def test_passes_of_micro_batches_are_put_aside_and_compressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "LINES", 10)
    recorder = Recorder(str(tmp_path), 0)
    for step in range(1, 26):
        order = ("F0.0",) if step == 1 else None
        fastest_ns = (4,) if step > 20 else None  # records of before did not have it
        launches_ns, waits_ns = ((7,), (step - 24,)) if step > 23 else (None, None)
        record = MicroBatchRecord(step, 0, 2, 2, 5, (("F", 0, 1, 5),), order, None, fastest_ns, launches_ns, waits_ns)
        recorder.write_micro_batches(record)
        recorder.late.flush()
    recorder.close()
    until_s = time.monotonic() + 30
    while not list(Path(recorder.folder).glob("micro_batches.*.gz")) and time.monotonic() < until_s:
        time.sleep(0.1)
    passes = read_micro_batches(Path(recorder.folder), 0, 0, [])
    assert [record.step for record in passes] == list(range(1, 26))
    assert passes[-1].order == ("F0.0",)
    assert [record.totals[0].fastest_ns for record in passes] == [None] * 20 + [4] * 5
    assert [record.launch_ns for record in passes] == [None] * 23 + [7, 7]
    assert [record.worked_ns for record in passes] == [None] * 23 + [5, 4]
    assert [record.wait_share for record in passes] == [None] * 23 + [0, 1 / 5]
