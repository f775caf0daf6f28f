"""The right finding stands first in trainings with one fault, and nothing in clean ones."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest

from benchmarks import kept_run
from benchmarks.injected_faults import find
from perfscope.analyzers.findings import Findings
from perfscope.constants import NS_PER_S
from tests.conftest import ROOT

RECORDED = ROOT / "fixtures" / "findings"
with (RECORDED / "cases.csv").open(newline="") as _file:
    CASES = list(csv.DictReader(_file))
FAULTY = [case for case in CASES if case["finding"]]
#: A finding that costs more of a clean run's step is false.
LARGEST_FALSE = 0.03
#: Faults in trainings whose GPUs are at their own limit of power.
POWER_LIMITED = ("h200/fsdp1_no_prefetch",)
#: Steps of one training differ by so much from process to process.
SCATTER = 0.02
#: Findings about time that comes on top of the steps.
BESIDE = ("blocking_saves", "recompilation")
_runs: dict[Path, Findings] = {}


def findings_of(folder: Path) -> Findings:
    if folder not in _runs:
        _runs[folder] = find(folder)
    return _runs[folder]


def first(folder: Path) -> str | None:
    found = findings_of(folder).findings
    return found[0].id if found else None


@pytest.mark.parametrize("case", CASES, ids=[case["run"] for case in CASES])
def test_recorded_runs_name_their_fault_first_and_clean_ones_none(case: dict[str, str]) -> None:
    found = findings_of(RECORDED / case["run"])
    if case["finding"]:
        assert first(RECORDED / case["run"]) == case["finding"]
    else:
        assert all(finding.share_of_step <= LARGEST_FALSE for finding in found.findings)


@pytest.mark.parametrize(
    "case", [case for case in FAULTY if case["twin"].startswith("h200")], ids=lambda case: str(case["run"])
)
def test_costs_are_near_what_was_injected(case: dict[str, str]) -> None:
    found, twin = (findings_of(RECORDED / case[key]) for key in ("run", "twin"))
    injected_us, tolerance_us = found.step_us - twin.step_us, SCATTER * twin.step_us
    cost_us = found.findings[0].cost_us
    assert cost_us >= 0.4 * injected_us - tolerance_us
    # GPUs at their limit of power save it in pauses, and compute faster in the rest of the step: most of it is no loss.
    if case["run"] not in POWER_LIMITED:
        assert cost_us <= 1.25 * injected_us + tolerance_us


def test_what_gpus_at_their_limit_of_power_regain_may_be_nothing() -> None:
    """FSDP 1 without prefetch waits 12 ms more for communication, and its clock is 4 % higher: 4 ms are lost."""
    found, twin = (findings_of(RECORDED / "h200" / name) for name in ("fsdp1_no_prefetch", "fsdp1_clean"))
    assert found.findings[0].interval_us[0] == 0.0
    assert found.step_us - twin.step_us < 0.45 * found.findings[0].cost_us


def test_intervals_hold_what_was_injected() -> None:
    """All but what a GPU saves beyond its waits, because it keeps its clock, and the other costs of emptied caches."""
    beyond = []
    for case in FAULTY:
        if case["twin"].startswith(("h200", "../whatif")):
            found, twin = (findings_of(RECORDED / case[key]) for key in ("run", "twin"))
            low_us, high_us = found.findings[0].interval_us
            tolerance_us = SCATTER * found.step_us
            if not low_us - tolerance_us <= found.step_us - twin.step_us <= high_us + tolerance_us:
                beyond.append(case["run"])
    assert beyond == ["h200/pause", "h200/optimizer_loop", "h200/allocator_retries"]


@pytest.mark.parametrize("case", FAULTY, ids=[case["run"] for case in FAULTY])
def test_costs_of_all_findings_fit_into_a_step(case: dict[str, str]) -> None:
    found = findings_of(RECORDED / case["run"]).findings
    assert sum(finding.cost_us for finding in found if finding.id not in BESIDE) <= 1.05 * max(
        finding.step_us for finding in found
    )
    for finding in found:
        low, high = finding.interval_us
        assert 0 <= low <= finding.cost_us <= high
    assert [finding.cost_us for finding in found] == sorted((finding.cost_us for finding in found), reverse=True)


@pytest.mark.parametrize(
    ("begun_s", "compiled_s", "title"),
    [(40, 0, "Long start-up"), (0, 40, "Long compilation at the start"), (20, 20, "")],
)
def test_a_start_is_a_finding_from_half_a_minute_on(begun_s: int, compiled_s: int, title: str, tmp_path: Path) -> None:
    """A run on an H200, whose process began earlier, or compiled before its first step."""
    run = tmp_path / "run"
    shutil.copytree(RECORDED / "h200" / "clean", run)
    rank, steps = (run / "ranks" / "00000" / name for name in ("rank.json", "steps.jsonl"))
    record = json.loads(rank.read_text())
    first_ns = record["torch_loaded_ns"]
    for moment in ("started_ns", "torch_loaded_ns", "hooked_ns"):
        record[moment] -= (compiled_s + begun_s * (moment == "started_ns")) * NS_PER_S
    rank.write_text(json.dumps(record))
    row, _, others = steps.read_text().partition("\n")
    spans = [["compilation", first_ns - compiled_s * NS_PER_S, first_ns, 0]] if compiled_s else []
    first_step = json.loads(row)
    steps.write_text(json.dumps({**first_step, "spans": spans + first_step["spans"]}) + "\n" + others)
    found = find(run).findings
    assert [finding.title for finding in found] == [title] * bool(title)
    for finding in found:
        assert (finding.id, finding.of_wall) == ("long_start", True)
        assert finding.cost_s == pytest.approx(compiled_s or begun_s + 7.5, rel=0.01)  # it took 7.5 s before
        assert "of the wall clock" in finding.cost


def test_a_sleep_in_each_step_is_found_where_python_of_as_much_is_usual() -> None:
    """Steps that compute for 62 ms and sleep for 38: 2.258 s of the loop by the script's own clock."""
    (found,) = findings_of(RECORDED / "busy" / "plain_pause_between_each").findings
    assert (found.id, found.place) == ("host_pauses", "Loop.pause (tests/scripts/faults.py:195)")
    assert found.cost_s == pytest.approx(2.258, rel=0.1)


def test_profiled_steps_without_a_processor_show_no_pause_of_their_own(tmp_path: Path) -> None:
    """The same run, whose thread waited for a processor in its two profiled steps."""
    shutil.copytree(kept_run(RECORDED / "busy" / "plain_pause_between_each"), tmp_path / "run")
    path = tmp_path / "run" / "ranks" / "00000" / "steps.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        if row.get("window") == "profiled":
            row["host"][1] = 60_000_000
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert not find(tmp_path / "run").findings


def test_what_is_collected_behind_an_evaluation_is_none_of_it() -> None:
    """The tenth collection is after the last step, and no part of the loop."""
    garbage, evaluation = findings_of(RECORDED / "busy" / "evaluation_and_garbage").findings
    assert (garbage.id, evaluation.id) == ("garbage_collection", "evaluation")
    assert evaluation.cost_s == pytest.approx(1.944, rel=0.01)
    assert garbage.cost_s == pytest.approx(0.9 * 7.213, rel=0.1)
