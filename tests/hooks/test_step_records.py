"""What a step's record says, field by field, as hooks reported it."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from perfscope.hooks.capture import Capture
from perfscope.hooks.config import Config
from perfscope.hooks.selection import parse_windows


@pytest.fixture
def capture(tmp_path: Path) -> Capture:
    return Capture(Config(str(tmp_path), parse_windows("1000"), nvml_hz=0))


def records(capture: Capture, tmp_path: Path) -> list[dict[str, Any]]:
    capture.files.close()
    (file,) = tmp_path.glob("ranks/*/steps.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_every_field_carries_what_was_reported(capture: Capture, tmp_path: Path) -> None:
    engine = object()
    stated: Any = {
        "micro_batches": 3,
        "samples": 5,
        "tokens": 7,
        "global_samples": 11,
        "loss_scale": 2.5,
        "iteration": 13,
    }
    for _ in range(2):
        capture.on_step_begin()
        capture.on_batch_loaded([torch.zeros(2, 4, dtype=torch.long)], wait_ns=17)
        capture.on_step_end("megatron", engine, skipped=True, **stated)
    first, second = records(capture, tmp_path)
    for number, record in enumerate((first, second), 1):
        assert {name: record[name] for name in stated} == stated
        assert (record["step"], record["source"], record["skipped"], record["data_wait_ns"]) == (
            number,
            "megatron",
            True,
            17,
        )
        assert record["hook_ns"] > 0
        assert record["wall_ns"] >= 0
        assert not {"window", "save_ns", "draining", "memory_peak_bytes"} & set(record)
    assert second["end_ns"] - first["end_ns"] >= second["wall_ns"]


@pytest.mark.parametrize(
    ("batch", "samples", "tokens"),
    [
        (torch.zeros(2, 4, dtype=torch.long), 2, 8),
        ([torch.zeros(3, 5)], 3, None),
        ({"labels": torch.zeros(9), "input_ids": torch.zeros(2, 6, dtype=torch.long)}, 2, 12),
        ({"images": torch.zeros(4, 3, 8, 8)}, 4, None),
        (("text", [torch.zeros(6, 2)]), 6, None),
        ("text", None, None),
        ([torch.tensor(1.0)], None, None),
    ],
    ids=["ids", "features in a list", "ids by name", "images by name", "deep", "no tensor", "no dimension"],
)
def test_the_first_tensor_of_a_batch_is_counted(
    batch: Any, samples: int | None, tokens: int | None, capture: Capture, tmp_path: Path
) -> None:
    capture.on_batch_loaded(batch, 1)
    capture.on_step_end("optimizer", capture)
    (record,) = records(capture, tmp_path)
    assert (record.get("samples"), record.get("tokens")) == (samples, tokens)


@pytest.mark.parametrize(
    ("args", "kwargs", "samples"),
    [
        ((torch.zeros(2, 4), torch.zeros(9)), {}, 2),
        ((torch.zeros(9),), {"input_ids": torch.zeros(3, 4)}, 3),
        (({"x": torch.zeros(4)},), {"input_ids": None}, 4),
        ((), {"labels": torch.zeros(5)}, 5),
        ((), {}, None),
    ],
)
def test_the_first_tensor_that_enters_the_model_is_counted(
    args: tuple[Any, ...], kwargs: dict[str, Any], samples: int | None, capture: Capture, tmp_path: Path
) -> None:
    capture.on_forward(args, kwargs)
    capture.on_step_end("optimizer", capture)
    (record,) = records(capture, tmp_path)
    assert (record.get("samples"), record["micro_batches"]) == (samples, 1)


def test_a_forked_child_records_nothing_and_its_parent_goes_on(capture: Capture, tmp_path: Path) -> None:
    capture.on_step_end("optimizer", capture)
    pid = os.fork()
    if pid == 0:
        capture.on_step_end("optimizer", capture)
        capture.finish()
        os._exit(0 if capture.dead and capture.steps == 1 else 1)
    assert os.waitpid(pid, 0)[1] == 0
    capture.on_step_end("optimizer", capture)
    assert [record["step"] for record in records(capture, tmp_path)] == [1, 2]


def test_a_thread_that_loads_ahead_does_not_train_and_training_does_not_wait_for_it(
    capture: Capture, tmp_path: Path
) -> None:
    """Steps of the main thread count, also where the first sign of all was a batch in another thread."""
    batch = [torch.zeros(2, 4, dtype=torch.long)]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    for _ in range(3):
        ahead = threading.Thread(target=capture.on_batch_loaded, args=(batch, 10**9))
        ahead.start()
        ahead.join()
        capture.on_optimizer_step(optimizer)
    steps = records(capture, tmp_path)
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert [step["samples"] for step in steps] == [2, 2, 2]
    assert all("data_wait_ns" not in step for step in steps)
