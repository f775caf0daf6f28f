"""The figures that the report on overhead states beside its generated tables are those of the fixtures."""

from __future__ import annotations

import json
import re
from statistics import mean, median
from typing import Any

from tests.conftest import ROOT

FIXTURES = ROOT / "fixtures" / "overhead"
REPORT = (ROOT / "reports" / "h200-overhead.md").read_text(encoding="utf-8")
NAMES = {"plain": "plain", "ddp": "DDP", "fsdp2": "FSDP 2", "deepspeed": "DeepSpeed, ZeRO 1"}


def read(name: str) -> Any:
    return json.loads((FIXTURES / name).read_text(encoding="utf-8"))


def has_row(*cells: str) -> bool:
    pattern = r"\|\s*" + r"\s*\|\s*".join(re.escape(cell) for cell in cells) + r"\s*\|"
    return re.search(pattern, REPORT) is not None


def test_counted_hooks_are_those_of_the_steps() -> None:
    parts = read("h200-counted.json")["parts"]
    for kind in ("host-bound", "device-bound"):
        own = [part for part in parts if part["kind"] == kind]
        times_us = [time for part in own for time in part["before_us"] + part["after_us"]]
        step_ms = median(part["step_ms"] for part in own)
        figures = f"{step_ms:.1f}", f"{mean(times_us):.1f}", f"{median(times_us):.1f}"
        assert has_row(kind, str(len(times_us)), *figures, f"{mean(times_us) / step_ms / 10:.2f} %"), (kind, figures)


def test_times_around_wrappers_are_less_what_the_clocks_take() -> None:
    rows = {(row["kind"], row["hooked"]): row for row in read("h200-wrappers.json")}
    for kind, name in NAMES.items():
        hooked, bare = rows[kind, True], rows[kind, False]
        mean_us, median_us = (hooked[key] - bare[key] for key in ("mean_us", "median_us"))
        figures = f"{hooked['wall_ms']:.1f}", f"{mean_us:.1f}", f"{median_us:.1f}"
        assert has_row(name, *figures, f"{mean_us / hooked['wall_ms'] / 10:.2f} %"), (kind, figures)


def test_every_training_behind_windows_passed() -> None:
    verdicts = read("h200-after-windows.json")
    assert len(verdicts) == 9
    assert [verdict["problem"] for verdict in verdicts] == [""] * 9
    whole = [verdict["kernels"] for verdict in verdicts if verdict["case"] != "ends-in-window"]
    assert all(len(set(kernels)) == 1 for kernels in whole)
    assert max(count for verdict in verdicts for count in verdict["others"]) == 70


def test_megatron_recorded_the_same_kernels_in_each_window() -> None:
    (verdict,) = read("h200-after-windows-megatron.json")
    assert verdict["problem"] == ""
    assert verdict["kernels"] == [2864] * 6
    assert sorted(verdict["others"]) == [0, 0, 0, 0, 0, 3]


def test_launches_of_megatron_behind_a_window_cost_what_they_cost_without_perfscope() -> None:
    probe = read("h200-megatron-probe.json")
    launches = {}
    for kind, name in (("captured", "with a window at step 41"), ("bare", "without perfscope")):
        steps = [row[0] for row in probe[kind][0]]
        parts = [f"{median(steps[first - 1 : last]):.1f}" for first, last in ((8, 39), (48, 80), (81, 150))]
        rows = [row for rank in probe[kind] for row in rank[80:]]
        launches[kind] = [
            median(row[3] for row in rows if low <= row[2] < high) for low, high in ((0, 720), (1000, 1300))
        ]
        assert has_row(name, *parts, *(f"{launch:.2f}" for launch in launches[kind]))
    assert all(abs(ours / bare - 1) < 0.06 for ours, bare in zip(*launches.values(), strict=True))
