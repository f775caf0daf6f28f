"""What is recorded of a training's set-up, and of Python's garbage collection."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfscope import wire
from perfscope.hooks.facts.device_memory import DevicePeaks
from perfscope.hooks.facts.setup import SetupWatch
from perfscope.sources.runs.run import read_run
from perfscope.wire.setup import LoaderRecord
from tests.conftest import environment

LATE = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader
import gc
from perfscope.hooks import attach

attach(sys.argv[1], steps="1000", nvml_hz=0)
samples = [{"input_ids": torch.arange(16), "attention_mask": (torch.arange(16) < 4).long()} for _ in range(16)]
model = nn.Embedding(16, 8)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
held = [[number] for number in range(100_000)]
for step, batch in enumerate(DataLoader(samples, batch_size=2, num_workers=0), 1):
    model(batch["input_ids"]).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step > 3:
        gc.collect()
    if step == 6:
        torch.save(model.state_dict(), sys.argv[1] + "/model.pt")
"""


def test_plain_options_of_an_engine_are_kept_and_others_left_out() -> None:
    watch = SetupWatch()
    watch.set_engine({"zero_optimization.stage": 3, "callback": object(), "zero_optimization.overlap_comm": False})
    record = watch.take_record(None)
    assert record is not None
    assert record.engine == {"zero_optimization.stage": 3, "zero_optimization.overlap_comm": False}


@pytest.mark.parametrize(("name", "value", "padded"), [("attention_mask", 0, 12), ("src_key_padding_mask", 1, 12)])
def test_masks_of_both_meanings_are_counted(name: str, value: int, padded: int) -> None:
    torch: Any = pytest.importorskip("torch")
    watch = SetupWatch()
    mask = torch.full((2, 8), 1 - value)
    mask[:, 2:] = value
    watch.add_batch({name: mask})
    watch.add_batch([mask])
    watch.add_batch({name: mask[0]})
    record = watch.take_record(None)
    assert record is not None
    assert record.padding is not None
    assert (record.padding.positions, record.padding.padded, record.padding.batches) == (16, padded, 1)


@pytest.mark.slow
def test_a_script_that_attaches_after_its_imports_records_set_up_garbage_and_saves(tmp_path: Path) -> None:
    script, run_dir = tmp_path / "late.py", tmp_path / "run"
    script.write_text(LATE)
    command = [sys.executable, str(script), str(run_dir)]
    ended = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    run = read_run(run_dir)
    setup = run.setups[0]
    assert setup.optimizer is not None
    assert setup.padding is not None
    assert (setup.optimizer.name, setup.optimizer.fused, setup.optimizer.tensors) == ("AdamW", True, 1)
    assert setup.padding.padded / setup.padding.positions == 0.75
    assert setup.loaders == (LoaderRecord(0, False, None, False, 1),)
    assert run.saves is not None
    lines = (run_dir / wire.RANKS_FOLDER / wire.rank_folder(0) / wire.STEPS_FILE).read_text().splitlines()
    spans = [span for line in lines for span in json.loads(line).get("spans", ())]
    collections = [span for span in spans if span[0] == wire.GARBAGE]
    assert len(collections) >= 4
    assert sum(span[2] - span[1] for span in collections) <= run.steps[0].garbage_ns.sum() + max(
        span[2] - span[1] for span in collections
    )


def test_the_fullest_of_the_used_devices_counts_at_the_first_steps_and_then_beside_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reserved, read = {0: 100, 1: 0, 2: 0}, list[int]()

    def stats(device: int) -> dict[str, Any]:
        read.append(device)
        held = reserved[device]
        return {name: {"all": {"peak": held - less}} for name, less in (("allocated_bytes", 10), ("reserved_bytes", 0))}

    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 3,
        current_device=lambda: 0,
        memory_stats_as_nested_dict=stats,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    memory = DevicePeaks()
    assert memory.read_at_step() == {"memory_peak_bytes": 90}
    assert memory.read_beside() == {}
    reserved[2] = 300
    memory.read_at_step()
    read.clear()
    assert memory.read_at_step() == {"memory_peak_bytes": 290}
    assert read == [0, 2]
    assert not memory.is_read_beside
    memory.read_at_step()
    assert memory.is_read_beside
    assert memory.read_beside() == {"memory_peak_bytes": 290}
