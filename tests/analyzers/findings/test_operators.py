"""Findings by the roofline, the modules and the allocator's history, beside what the changes saved on an H200."""

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
from perfscope.analyzers.findings import Findings
from perfscope.analyzers.findings.finding import Finding
from perfscope.engine.run import Analysis, Plan, analyze
from perfscope.page.build import draw_findings
from tests.conftest import ROOT

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
