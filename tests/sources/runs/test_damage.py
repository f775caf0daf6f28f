"""Records that no process writes cost a sentence, never the analysis."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from benchmarks import kept_run
from perfscope.cli import main
from perfscope.engine.run import analyze
from perfscope.sources.runs.model_record import read_model_record
from perfscope.sources.runs.records import decode_step, read_record, read_records
from perfscope.wire.setup import SetupRecord
from tests.conftest import ROOT

RUNS = ROOT / "fixtures" / "runs"
FILES = (
    "h200_megatron_pp2/ranks/00000/steps.jsonl",
    "h200_megatron_pp2/ranks/00000/events.jsonl",
    "h200_megatron_pp2/ranks/00000/micro_batches.jsonl",
    "h200_megatron_pp2/ranks/00000/rank.json",
    "h200_megatron_pp2/ranks/00000/model.json",
    "h200_megatron_pp2/nvml/vm.jsonl",
    "cpu_fsdp2_async/ranks/00000/checkpoints.jsonl",
)


@pytest.mark.parametrize(
    ("written", "damaged"),
    [
        (rb":(\d{4,})\b", b":%d" % 2**70),
        (rb'"kind":"\w+"', b'"kind":[]'),
        (rb"\[\d+", b"[[]"),
        (rb':"\w', b':"\xff'),
        (rb":\d+", b":" + b"[" * 10_000 + b"]" * 10_000),
        (rb'"config":{', b'"config":{"deep":' + b"[" * 10_000 + b"]" * 10_000 + b","),
    ],
)
@pytest.mark.parametrize("name", FILES)
def test_a_record_that_no_process_writes_is_damage(name: str, written: bytes, damaged: bytes, tmp_path: Path) -> None:
    run, _, file = name.partition("/")
    shutil.copytree(kept_run(RUNS / run), tmp_path / run)
    path = tmp_path / name
    content = path.read_bytes().replace(b'": ', b'":')
    path.write_bytes(changed := re.sub(written, damaged, content))
    damage = analyze([tmp_path / run]).damage
    assert changed == content or any(Path(file).name in line for line in damage)


@pytest.mark.parametrize("number", [sys.maxsize, 2**64 - 1, 2**70])
def test_a_configuration_may_state_any_number(number: int, tmp_path: Path) -> None:
    config = {"n_layer": 12, "max_seq_len": number, "inner": {"seeds": [number]}}
    record = {"parameters": 5, "trainable": 5, "weights": [], "config": config}
    (tmp_path / "model.json").write_text(json.dumps(record))
    damage: list[str] = []
    model = read_model_record(tmp_path, 0, damage)
    assert (model.stated.layers if model else None, damage) == (12, [])
    (tmp_path / "model.json").write_text(json.dumps({**record, "parameters": number}))
    assert read_model_record(tmp_path, 0, damage) is None
    assert len(damage) == 1
    (tmp_path / "setup.json").write_text(json.dumps({"engine": {"model_persistence_threshold": number}}))
    assert read_record(tmp_path / "setup.json", SetupRecord).engine == {"model_persistence_threshold": number}


def test_a_file_of_records_that_inflates_to_a_bomb_is_named_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfscope.files._MOST_INFLATED", 1 << 20)
    path, damage = tmp_path / "steps.000001.jsonl.gz", list[str]()
    for size, is_damage in ((1 << 20, False), ((1 << 20) + 1, True)):
        path.write_bytes(gzip.compress(b"\n" * size))
        assert read_records(path, decode_step, damage) == []
        assert bool(damage) == is_damage


@pytest.mark.parametrize("words", [("watch", "--once"), ("postmortem",)])
@pytest.mark.parametrize("name", ["run.json", "nvml/vm.jsonl", "ranks/00000/steps.jsonl", "deaths/vm.jsonl"])
def test_no_command_waits_for_a_fifo(
    words: tuple[str, ...], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(kept_run(RUNS / "h200_megatron_pp2"), tmp_path / "run")
    path = tmp_path / "run" / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    monkeypatch.setattr(sys, "argv", ["perfscope", *words, str(tmp_path / "run")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (0, 1, 4)
