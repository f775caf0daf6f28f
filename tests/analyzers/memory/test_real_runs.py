"""Runs of `perfscope profile --memory` on H200: what the window misses, and what suggested changes really saved."""

from __future__ import annotations

import pytest

from benchmarks import kept_run
from perfscope.analyzers.memory import DevicePeak, MemoryUse, analyze
from perfscope.sources.runs.run import read_run
from tests.conftest import ROOT

RUNS = ROOT / "fixtures" / "memory" / "runs"
#: By torch's counter, of the whole training.
PEAKS = {
    "ddp": 13_175_756_800,
    "resnet50": 6_089_655_808,
    "fsdp2": 9_628_672_000,
}
#: Of the same training with each block recomputed, and with the loss in eight chunks.
RECOMPUTED, CHUNKED = 6_601_945_088, 5_419_491_328


def use(name: str) -> MemoryUse:
    return analyze(read_run(kept_run(RUNS / name)))


def peak(name: str) -> DevicePeak:
    (device,) = use(name).devices
    return device


@pytest.mark.parametrize("name", PEAKS)
def test_the_peak_is_torchs_and_all_of_it_is_named(name: str) -> None:
    device = peak(name)
    assert device.process_peak_bytes == PEAKS[name]
    assert device.attributed >= 0.99
    assert sum(part.bytes for part in device.categories) == device.peak_bytes
    if name != "ddp":  # blocks whose rest was too small to split are larger than the history says
        assert device.peak_bytes == pytest.approx(PEAKS[name], rel=0.006 if name == "resnet50" else 0)


def test_a_higher_peak_outside_of_the_window_is_named() -> None:
    (note,) = use("ddp").notes
    assert "the process held 13.176 GB, 0.816 GB more" in note
    assert use("fsdp2").notes == use("resnet50").notes == ()


@pytest.mark.parametrize(("change", "after"), [("recompute", RECOMPUTED), ("compute the output", CHUNKED)])
def test_what_a_change_saves_is_predicted_within_three_percent_of_the_peak(change: str, after: int) -> None:
    before = peak("fsdp2")
    (saving,) = [saving for saving in before.savings if saving.change.startswith(change)]
    assert before.peak_bytes - saving.saved_bytes == pytest.approx(after, rel=0.03)


def test_layers_of_the_model_itself_have_a_name() -> None:
    (saving,) = [saving for saving in peak("resnet50").savings if saving.change.startswith("recompute")]
    assert "layers of the model in the backward pass" in saving.change
