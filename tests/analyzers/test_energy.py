"""Energy, tokens/J and throttled steps, on samples whose answers are known by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfscope import wire
from perfscope.analyzers import energy, gpus, throttling
from perfscope.analyzers.gpus import analyze
from perfscope.errors import MissingInput
from perfscope.sources.runs.run import read_run
from perfscope.tables.run import Run
from perfscope.wire.records import RankRecord, StepRecord, to_line
from tests.analyzers.test_steps import write_run

S = 10**9
UUID = "GPU-00000000-aaaa-bbbb-cccc-00000000000{}"
STEPS = 30

#: The values of GPU number g at second t.
At = Callable[[int, float], dict[str, Any]]


def write(
    root: Path, at: At, *, count: int = 2, head: dict[str, Any] | None = None, ranks: int = 2, pause_ns: int = 0
) -> Run:
    """Ranks of one host with 30 steps of a second each, from second 0; GPU r belongs to rank r; samples every 0.5 s.

    Each step is shorter by a pause before it.
    """
    (root / wire.RUN_FILE).parent.mkdir(parents=True, exist_ok=True)
    (root / wire.RUN_FILE).write_text(json.dumps({"command": ["train"]}))
    for rank in range(ranks):
        folder = root / wire.RANKS_FOLDER / wire.rank_folder(rank)
        folder.mkdir(parents=True)
        uuid = UUID.format(rank)
        record = RankRecord(rank, ranks, "node", 1, 0, 0, "3.11", device_type="cuda", device_uuid=uuid)
        (folder / wire.RANK_FILE).write_bytes(to_line(record))
        lines = [
            StepRecord(
                step,
                step * S,
                "deepspeed",
                wall_ns=S - pause_ns,
                tokens=500,
                window=wire.PROFILED if step in (4, 5) else None,
            )
            for step in range(1, STEPS + 1)
        ]
        (folder / wire.STEPS_FILE).write_bytes(b"".join(to_line(line) for line in lines))
    known = [{"uuid": UUID.format(gpu), "name": "Some GPU", "index": gpu, **(head or {})} for gpu in range(count)]
    samples = [
        {"t_ns": tick * S // 2, "gpus": [at(gpu, tick / 2) for gpu in range(count)]} for tick in range(2 * STEPS + 1)
    ]
    (root / wire.NVML_FOLDER).mkdir()
    records = [{"host": "node", "t_ns": 0, "gpus": known}, *samples]
    (root / wire.NVML_FOLDER / "node.jsonl").write_text("".join(json.dumps(line) + "\n" for line in records))
    return read_run(root)


def test_energy_is_power_over_the_steady_state_steps(tmp_path: Path) -> None:
    """Power rises by 10 W a second from 200 W."""
    run = write(tmp_path, lambda gpu, t: {"power_mw": int(200e3 + 10e3 * t)})
    result = energy.analyze(run)
    # Steps 3 and 6 to 30; step n lies around second n - 0.5.
    steady = [3, *range(6, STEPS + 1)]
    expected = sum(200 + 10 * (step - 0.5) for step in steady) / len(steady)
    assert [gpu.step_j for gpu in result.gpus] == [pytest.approx(expected)] * 2
    assert [gpu.steps for gpu in result.gpus] == [26, 26]
    assert result.step_j == pytest.approx(2 * expected)
    assert result.tokens_per_j == pytest.approx(2 * 500 / (2 * expected))


@pytest.mark.parametrize(("limit_w", "is_possible"), [(700, True), (200, False)])
def test_a_mean_power_above_the_limit_is_withheld(limit_w: int, is_possible: bool, tmp_path: Path) -> None:
    run = write(tmp_path, lambda _gpu, _t: {"power_mw": 300_000}, head={"power_limit_mw": limit_w * 1000})
    result = energy.analyze(run) if is_possible else None
    if result is not None:
        assert result.gpus[0].power_w == pytest.approx(300)
        assert result.step_j == pytest.approx(600)
        return
    with pytest.raises(MissingInput, match="300 W, above the limit of 200 W, which cannot be"):
        energy.analyze(run)


@pytest.mark.parametrize(("pause_s", "is_known"), [(0.1, True), (0.3, False)])
def test_the_energy_of_steps_that_follow_pauses_is_withheld(pause_s: float, is_known: bool, tmp_path: Path) -> None:
    """What NVML calls the power of such a step is in part that of the pause in the second before."""
    run = write(tmp_path, lambda _gpu, _t: {"power_mw": 300_000}, pause_ns=int(pause_s * S))
    if is_known:
        assert energy.analyze(run).step_j == pytest.approx(600 * (1 - pause_s))
        return
    with pytest.raises(MissingInput, match="most undisturbed steps begin sooner than that after a pause"):
        energy.analyze(run)


def test_a_silence_leaves_the_steps_in_it_out(tmp_path: Path) -> None:
    """No power from second 10 to 20: those steps are neither interpolated nor 0."""
    run = write(tmp_path, lambda gpu, t: {} if 10 < t < 20 else {"power_mw": 100_000 if t <= 10 else 300_000})
    (first, _) = energy.analyze(run).gpus
    assert first.steps == 16
    assert first.step_j == pytest.approx((100 * 6 + 300 * 10) / 16)


def test_energy_of_all_gpus_is_unknown_where_a_ranks_gpu_was_not_sampled(tmp_path: Path) -> None:
    run = write(tmp_path, lambda gpu, t: {"power_mw": 100_000}, count=1)
    result = energy.analyze(run)
    assert (result.step_j, result.tokens_per_j) == (None, None)
    assert result.gpus[0].step_j == pytest.approx(100)
    assert any("unknown for ranks [1]" in note for note in result.notes)


def test_two_ranks_on_one_gpu_use_its_energy_once(tmp_path: Path) -> None:
    run = write(tmp_path, lambda gpu, t: {"power_mw": 100_000}, count=1)
    (tmp_path / wire.RANKS_FOLDER / "00001" / wire.RANK_FILE).write_bytes(
        (tmp_path / wire.RANKS_FOLDER / "00000" / wire.RANK_FILE).read_bytes()
    )
    run = read_run(tmp_path)
    result = energy.analyze(run)
    assert [gpu.ranks for gpu in result.gpus] == [(0, 1)]
    assert result.step_j == pytest.approx(100)


def test_the_power_of_a_gpu_that_mig_splits_is_nobodys(tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match="NVML does not report the power of this GPU"):
        energy.analyze(write(tmp_path, lambda gpu, t: {"power_mw": 100_000}, count=1, ranks=1, head={"mig": True}))


def test_throttling_is_on_the_steps_it_hit_and_says_why(tmp_path: Path) -> None:
    """GPU 0 is capped from second 9.5 to 12, at a lower clock; idleness and set clocks on GPU 1 are no throttling."""

    def at(gpu: int, t: float) -> dict[str, Any]:
        capped = gpu == 0 and 9.5 <= t < 12
        return {
            "throttle": 0x1 | 0x2 | 0x100 if gpu else 0x4 if capped else 0,
            "sm_clock_mhz": 1200 if capped else 1900,
            "sw_power_cap_ns": int(max(0, min(t, 12) - 9.5) * S) if gpu == 0 else 0,
        }

    throttled, unthrottled = throttling.analyze(write(tmp_path, at)).gpus
    assert throttled.steps == (10, 11, 12)  # step 13 begins at second 12, where the cap ends
    (cause,) = throttled.causes
    assert (cause.cause, cause.steps) == ("software power cap", (10, 11, 12))
    assert cause.time_fraction == pytest.approx(2.5 / 30)
    assert (throttled.known_steps, unthrottled.known_steps) == (30, 30)
    assert (unthrottled.steps, unthrottled.causes) == ((), ())
    assert throttled.hit_mhz == pytest.approx(1200)
    assert (throttled.hit_s, throttled.clear_s) == (1.0, 1.0)


def test_steps_far_from_any_sample_are_unknown(tmp_path: Path) -> None:
    run = write(tmp_path, lambda gpu, t: {"throttle": 0} if t < 5 else {})
    assert throttling.analyze(run).gpus[0].known_steps == 8  # the last sample is at 4.5 s, and held for 2.5 s


def test_a_power_cap_clocks_links_and_a_lost_gpu_are_in_the_table_of_gpus(tmp_path: Path) -> None:
    def at(gpu: int, t: float) -> dict[str, Any]:
        return {
            "power_mw": 400_000,
            "sm_clock_mhz": 1500,
            "temperature_c": int(t),
            "nvlink_tx_kib": int(1e6 * t),
            "pcie_rx_bytes": int(1e6 * t),
        }

    run = write(tmp_path, at, head={"power_limit_mw": 500_000, "power_limit_default_mw": 700_000})
    result = gpus.analyze(run)
    first = result.gpus[0]
    assert (first.sm_clock_mhz, first.temperature_c) == (1500.0, 30)
    assert first.nvlink_tx_bytes_per_s == pytest.approx(1.024e9)
    assert first.nvlink_rx_bytes_per_s is None
    assert first.pcie_rx_bytes_per_s == pytest.approx(1e6)
    assert "Power is capped at 500 W on 2 GPUs, below their default of 700 W." in result.notes
    assert [section.title for section in result.sections()] == ["GPUs", "Links"]


def test_pcie_counters_begin_again_at_32_bits(tmp_path: Path) -> None:
    """3 GB/s, read twice a second: the counter turns every 1.4 s, never twice between two readings."""
    run = write(tmp_path, lambda gpu, t: {"pcie_tx_bytes": int(3e9 * t + 4e9) % 2**32, "pcie_rx_bytes": int(1e6 * t)})
    result = gpus.analyze(run)
    assert result.gpus[0].pcie_tx_bytes_per_s == pytest.approx(3e9)
    assert result.gpus[0].pcie_rx_bytes_per_s == pytest.approx(1e6)


def run_with(lines: list[object], root: Path) -> Path:
    run = write_run(root, {0: [1, 1, 1, 1]})  # steps end at 1, 2, 3 and 4 ms
    (run / wire.NVML_FOLDER).mkdir()
    (run / wire.NVML_FOLDER / "host.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def test_means_are_over_the_samples_between_the_first_and_the_last_step(tmp_path: Path) -> None:
    gpu = {"uuid": "GPU-1", "name": "Some GPU", "power_limit_mw": 700_000, "memory_total_bytes": 80 * 10**9}
    samples = [
        {"t_ns": t_ns, "gpus": [{"power_mw": power, "gpu_util_percent": 50, "memory_used_bytes": used}]}
        for t_ns, power, used in [(0, 9, 99), (1_000_000, 300_000, 10), (4_000_000, 500_000, 20), (4_000_001, 9, 99)]
    ]
    (result,) = analyze(read_run(run_with([{"gpus": [gpu]}, *samples], tmp_path))).gpus
    assert (result.samples, result.power_w, result.power_limit_w) == (2, 400.0, 700.0)
    assert (result.util_percent, result.memory_used_bytes) == (50.0, 20)


def test_what_a_gpu_does_not_tell_is_absent(tmp_path: Path) -> None:
    lines: list[object] = [{"gpus": [{"uuid": "GPU-1", "name": "n"}]}, {"t_ns": 2_000_000, "gpus": [{}]}]
    (result,) = analyze(read_run(run_with(lines, tmp_path))).gpus
    assert (result.power_w, result.util_percent, result.memory_used_bytes) == (None, None, None)


def test_without_nvml_the_reason_is_passed_on(tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match="no driver"):
        analyze(read_run(run_with([{"note": "no driver"}], tmp_path)))
