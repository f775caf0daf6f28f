"""What rules say of settings, of limits of a GPU, and of stages whose hosts are late."""

from __future__ import annotations

import csv
import gzip
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks import kept_run
from benchmarks.injected_faults import find
from perfscope.analyzers.findings import RULES, Findings, rank_findings
from perfscope.analyzers.findings.communication import find_exposed_communication, find_uneven_stages
from perfscope.analyzers.findings.compute import find_throttling
from perfscope.analyzers.findings.finding import Finding
from perfscope.analyzers.findings.training import TracedRun
from perfscope.engine.run import Analysis, Plan, analyze
from perfscope.page.build import draw_findings
from tests.analyzers.findings.made import Made, breakdown, idle, parts, steps, training
from tests.conftest import ROOT


def throttled(*, limit_w: float = 700.0, clock_mhz: float = 1500.0, count: int = 80) -> TracedRun:
    cause = Made(cause="software power cap", steps=range(count))
    gpus = [Made(uuid="A", power_limit_w=limit_w, power_limit_default_w=700.0, sm_clock_max_mhz=2000)]
    entry = Made(
        uuid="A", name="NVIDIA H200", ranks=(0,), known_steps=80, steps=cause.steps, causes=(cause,), hit_mhz=clock_mhz
    )  # fmt: skip
    return training(gpus=Made(gpus=gpus), throttling=Made(gpus=(entry,)))


def test_a_gpu_at_its_own_power_limit_is_no_finding() -> None:
    assert find_throttling(throttled()) is None
    assert throttled().is_power_capped
    assert not throttled(count=20).is_power_capped


def test_a_power_limit_that_somebody_set_is_a_finding() -> None:
    cause = find_throttling(throttled(limit_w=400.0))
    assert cause is not None
    assert cause.cost_us == 10_000.0 / 4
    assert "nvidia-smi -pl 700" in cause.advice


def exposed(communication_us: float, compute_us: float) -> TracedRun:
    times = Made(exposed_us=communication_us, exposed=round(1000 * communication_us), overlap_fraction=0.5)
    overlap = Made(axes=[Made(axis="world", row=times, marked=times)])
    return training(breakdown=breakdown(parts(compute_us, communication_us)), overlap=overlap)


def test_more_communication_than_computation_cannot_all_be_hidden() -> None:
    little, much = (find_exposed_communication(exposed(3000.0, compute_us)) for compute_us in (8000.0, 1500.0))
    assert little is not None
    assert much is not None
    assert "Transfer less" not in little.advice
    assert len(little.evidence) == 1
    assert much.evidence[-1].text == "A step computes 1.50 ms, which cannot hide all of it."
    assert "Transfer less" in much.advice


#: Four stages on four H100, whose second host slept 60 ms before each of 8 forward passes: what hooks and traces said.
SLEPT_US = {
    "passes": (86_470.0, 544_397.0, 81_030.0, 83_851.0),
    "work": (81_499.0, 78_730.0, 78_602.0, 81_224.0),
    "not_shown": (0.0, 453_521.0, 0.0, 0.0),
}
#: The same training without a sleep.
CLEAN_US = {
    "passes": (85_014.0, 83_920.0, 83_090.0, 85_560.0),
    "work": (81_600.0, 80_700.0, 80_500.0, 83_100.0),
    "not_shown": (0.0, 0.0, 0.0, 0.0),
}
LAUNCHES_US = 5_435.0, 15_893.0, 1_317.0, 1_474.0


def stages(times: Mapping[str, tuple[float, ...]], section_us: float, imbalance: float, gaps: float) -> TracedRun:
    """A pipeline that was measured by hooks and in traces, one stage a rank."""
    works, pauses = times["work"], times["not_shown"]
    devices = [
        parts(work, section_us - work - pause - launches)
        for work, pause, launches in zip(works, pauses, LAUNCHES_US, strict=True)
    ]
    waits = [{"not_shown": pause, "operator": launches} for pause, launches in zip(pauses, LAUNCHES_US, strict=True)]
    traced = Made(
        section=1000 * section_us,
        stages=[Made(ranks=(rank,), useful=1000 * us) for rank, us in enumerate(works)],
        schedule_fraction_of_total=0.051,
        imbalance_fraction_of_total=0.002,
        host_fraction_of_total=gaps,
        microbatches=8,
    )
    return training(
        breakdown=breakdown(*devices),
        idle=idle(*waits),
        steps=steps(section_us / 1e6, ranks=[]),
        pipeline_steps=Made(
            section=round(1000 * section_us),
            stages=[Made(ranks=(rank,), useful=round(1000 * us)) for rank, us in enumerate(times["passes"])],
            schedule_fraction_of_total=0.132,
            imbalance_fraction_of_total=imbalance,
            transfer_and_host_fraction_of_total=0.009,
            microbatches=8,
        ),
        pipeline_bubble=traced,
    )


def test_a_stage_whose_host_sleeps_has_not_too_many_layers() -> None:
    slept = stages(SLEPT_US, 570_000.0, 0.507, 0.801)
    assert find_uneven_stages(slept) is None
    first, *_ = rank_findings(slept, RULES)
    assert (first.id, first.ranks) == ("host_pauses", (1,))
    assert first.cost_us == pytest.approx(453_521.0, rel=0.01)


def test_the_same_stages_without_a_sleep_have_neither_fault() -> None:
    found = {finding.id for finding in rank_findings(stages(CLEAN_US, 124_000.0, 0.009, 0.05), RULES)}
    assert not found & {"host_pauses", "uneven_stages"}


@pytest.mark.parametrize(("work_us", "is_uneven"), [(81_000.0, False), (100_000.0, True)])
def test_stages_are_uneven_where_their_devices_work_unequally(work_us: float, is_uneven: bool) -> None:
    passes, work = (86_000.0, 104_000.0, 86_000.0, 86_000.0), (81_000.0, work_us, 81_000.0, 81_000.0)
    times = {**CLEAN_US, "passes": passes, "work": work}
    assert (find_uneven_stages(stages(times, 140_000.0, 0.15, 0.05)) is not None) == is_uneven


MODULES = ROOT / "fixtures" / "modules"
BY_HAND, CHANGED = MODULES / "llama", MODULES / "llama_changed"
CLEAN_RUN = kept_run(ROOT / "fixtures" / "findings" / "h200" / "clean_small")
HISTORY = ROOT / "fixtures" / "memory" / "pure.memory.jsonl.gz"
#: What names the part that each measured change replaced.
CHANGES = {
    "scaled_dot_product_attention": "eager_attention",
    "rms_norm of torch": "unfused_norm",
    "fused AdamW": "unfused_optimizer",
}


def by_id(found: Findings) -> dict[str, Finding]:
    return {finding.id: finding for finding in found.findings}


def test_what_each_change_saved_in_unprofiled_steps_is_near_the_cost_of_the_finding_that_asked_for_it() -> None:
    found = by_id(find(BY_HAND))
    with (MODULES / "changes.csv").open(newline="") as file:
        saved_us = {row["Change"]: 1000 * float(row["Saved in a step (ms)"]) for row in csv.DictReader(file)}
    assert set(found) == set(CHANGES.values())
    for change, identifier in CHANGES.items():
        assert found[identifier].cost_us == pytest.approx(saved_us[change], rel=0.15), change


def test_recomputation_that_no_trace_shows_is_no_finding(tmp_path: Path) -> None:
    run = kept_run(ROOT / "fixtures" / "findings" / "h200" / "recomputation")
    assert "recomputation" in by_id(find(run))
    shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("*.pt.trace.*"))
    assert "recomputation" not in by_id(find(tmp_path / "run")), "the model's settings say full"


def test_the_training_with_all_changes_has_no_finding() -> None:
    assert find(CHANGED).findings == ()


def analysis_with_history(folder: Path, changes: Mapping[str, object]) -> Analysis:
    """A clean run beside the recorded history of an allocator, whose header is changed."""
    shutil.copytree(CLEAN_RUN, folder)
    first, *events = gzip.decompress(HISTORY.read_bytes()).splitlines(keepends=True)
    header = json.dumps({**json.loads(first), **changes}).encode()
    (folder / "memory").mkdir()
    (folder / "memory" / "1.1.memory.jsonl").write_bytes(b"".join((header, b"\n", *events)))
    return analyze([folder], Plan(only=frozenset({"findings", "memory"})))


def run_with_history(folder: Path, changes: Mapping[str, object]) -> Findings:
    result = analysis_with_history(folder, changes).results["findings"]
    assert isinstance(result, Findings)
    return result


def test_a_memory_that_is_nearly_full_is_told_what_lowers_the_peak_most(tmp_path: Path) -> None:
    found = run_with_history(tmp_path / "run", {"device_total_bytes": 11_900_000_000, "device_free_bytes": 100_000_000})
    assert [finding.id for finding in found.findings] == ["full_memory"]
    assert "hold no tensor" in found.findings[0].evidence[0].text
    reserved = 11_221_860_352
    assert found.findings[0].saved_bytes == reserved - 9_498_349_568

    found = run_with_history(tmp_path / "large", {"device_total_bytes": 18_000_000_000, "device_free_bytes": 10**8})
    (finding,) = found.findings
    assert finding.id == "full_memory"
    assert finding.saved_bytes == pytest.approx(4.327e9, rel=0.001)
    assert "8 chunks" in finding.advice
    assert finding.cost_us == finding.share_of_step == 0
    assert "GB less at the peak" in found.sections()[0].notes[0]


def test_a_memory_with_room_gets_no_finding(tmp_path: Path) -> None:
    assert run_with_history(tmp_path / "run", {}).findings == ()


def test_a_page_shows_bytes_in_place_of_a_time(tmp_path: Path) -> None:
    small = {"device_total_bytes": 11_900_000_000, "device_free_bytes": 100_000_000}
    part = draw_findings(analysis_with_history(tmp_path / "run", small))
    assert 'data-pointer="/results/findings/0/saved_bytes"' in part.html
    assert "<strong" in part.html
    assert "GB</strong> <span>less at the peak</span>" in part.html
    assert "of a step" not in part.html
