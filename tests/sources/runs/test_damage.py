"""Records that no process writes cost a sentence, never the analysis."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from benchmarks import kept_run
from perfscope.engine.run import analyze
from perfscope.sources.runs.model_record import read_model_record
from perfscope.sources.runs.records import read_record
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
