"""Long JSON metrics are read many lines at once, as their rules read them: evaluations, epochs and starts between."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sources.joblog.test_record_lines import differences, read_both

DRAW = random.Random(1)
ITERATIONS = 12_000


def seconds() -> float:
    return round(0.3 + DRAW.random() / 100, 5)


def detectron2(*, first: int = 0) -> Iterator[str]:
    for step in range(first + 19, ITERATIONS, 20):
        line = {"data_time": 0.01, "iteration": step, "time": seconds(), "total_loss": DRAW.random()}
        if step % 1000 == 999:
            line["bbox/AP"] = 0.5
        yield json.dumps(line, sort_keys=True)


def mmengine(*, by_epoch: bool, first: int = 0) -> Iterator[str]:
    for step in range(first + 10, ITERATIONS // 2, 10):
        epoch = {"epoch": step // 500 + 1} if by_epoch else {}
        head = {"lr": 0.01, "data_time": 0.001, "loss": DRAW.random(), "time": seconds()}
        yield json.dumps({**head, **epoch, "iter": step, "memory": 912 + step // 1000, "step": step})
        if step % 300 == 0:
            yield json.dumps({"acc": 0.5, "data_time": 0.01, "time": 0.02, "step": step // 500})


def mmcv(*, by_epoch: bool, first: int = 0) -> Iterator[str]:
    for step in range(first + 50, ITERATIONS * 3, 50):
        epoch, number = ((step - 1) // 1000 + 1, (step - 1) % 1000 + 1) if by_epoch else (step // 700 + 1, step)
        head = {"mode": "train", "epoch": epoch, "iter": number, "lr": 0.01, "memory": 912 + step // 1000}
        yield json.dumps({**head, "data_time": 0.001, "loss": round(DRAW.random(), 5), "time": seconds()})
        if step % 1000 == 0:
            yield json.dumps({"mode": "val", "epoch": epoch, "iter": 47, "lr": 0.01, "acc": 0.5})


LONG = {
    "detectron2": [*detectron2()],
    "detectron2, started again": [*detectron2(), *detectron2(first=8000), *detectron2(first=40)],
    "mmengine by epochs": [*mmengine(by_epoch=True)],
    "mmengine by epochs, started again": [*mmengine(by_epoch=True), *mmengine(by_epoch=True, first=3000)],
    "mmengine by iterations": [*mmengine(by_epoch=False)],
    "mmengine by iterations, started again": [*mmengine(by_epoch=False), *mmengine(by_epoch=False, first=3000)],
    "mmcv by epochs": [*mmcv(by_epoch=True)],
    "mmcv by epochs, started again": [*mmcv(by_epoch=True), *mmcv(by_epoch=True, first=20_000)],
    "mmcv by iterations": [*mmcv(by_epoch=False)],
    "mmcv by iterations, started again": [*mmcv(by_epoch=False), *mmcv(by_epoch=False, first=20_000)],
}


@pytest.mark.parametrize("lines", LONG.values(), ids=LONG)
def test_they_are_read_as_by_their_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str]) -> None:
    path = tmp_path / "metrics.json"
    middle = len(lines) // 2
    damaged = [*lines[:middle], lines[middle][:50], *lines[middle:], lines[-1].replace("0.3", "NaN, 0.3")]
    wrong = [line.replace("0.305", "-0.305").replace('"iter": 77', '"iter": 7') for line in lines]
    for text in (lines, damaged, wrong):
        path.write_text("\n".join(text) + "\n")
        slow, fast, at_once = read_both(path, monkeypatch)
        assert differences(fast, slow) == []
        if text is lines:
            assert at_once >= len(lines) / 4
