"""Records that no process writes cost a sentence, never the analysis."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from benchmarks import kept_run
from perfscope.engine.run import analyze
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
