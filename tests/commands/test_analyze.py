"""`perfscope analyze` on a real run, whole and damaged: what is left is answered for, what is lost is named."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, perfscope
from tests.conftest import run as run_program

REAL_RUN = ROOT / "fixtures" / "runs" / "h200_zero1"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A copy of a run on four GPUs that a test may damage."""
    return Path(shutil.copytree(REAL_RUN, tmp_path / "run"))


def analyze(run: Path) -> tuple[int, dict[str, Any]]:
    ended = perfscope("analyze", "--format", "json", run, cwd=run.parent)
    assert "Traceback" not in ended.stderr
    return ended.code, json.loads(ended.stdout)


def traces(run: Path) -> list[Path]:
    return sorted((run / "traces").iterdir())


def test_every_part_of_a_rank_adds_up_to_its_window(run: Path) -> None:
    code, document = analyze(run)
    assert (code, document["schema"], document["warnings"]) == (0, "perfscope/analysis/1", [])
    assert document["results"]["steps"]["count"] == 40
    ranks = document["results"]["breakdown"]["ranks"]
    assert [rank["rank"] for rank in ranks] == [0, 1, 2, 3]
    for row in [*ranks, *(step for rank in ranks for step in rank["steps"])]:
        parts = ("compute_us", "exposed_communication_us", "exposed_copy_us", "idle_us")
        assert sum(round(row[part] * 1000) for part in parts) == round(row["window_us"] * 1000)
    assert [step["name"] for step in ranks[0]["steps"]] == ["ProfilerStep#5"]


def test_one_unreadable_trace_does_not_take_the_others_along(run: Path) -> None:
    traces(run)[1].write_bytes(b"garbage")
    code, document = analyze(run)
    assert code == 4
    assert [rank["rank"] for rank in document["results"]["breakdown"]["ranks"]] == [0, 2, 3]
    assert any("is not a trace" in warning for warning in document["warnings"])


def test_a_trace_that_a_window_names_and_that_is_gone_is_missed(run: Path) -> None:
    for trace in traces(run):
        trace.unlink()
    code, document = analyze(run)
    assert code == 4
    assert sum("is missing" in warning for warning in document["warnings"]) == 4


def test_a_rank_that_never_reported_is_named(run: Path) -> None:
    shutil.rmtree(run / "ranks" / "00002")
    code, document = analyze(run)
    assert code == 4
    assert "1 of 4 ranks never reported: 2" in document["warnings"]
    assert document["results"]["steps"]["tokens_per_s"] is None


def test_a_trace_is_analyzed_without_loading_what_it_does_not_need(tmp_path: Path) -> None:
    trace = ROOT / "fixtures" / "traces" / "gloo2" / "rank0.pt.trace.json.gz"
    program = (
        "import sys\n"
        "from perfscope.cli import main\n"
        "sys.argv[0] = 'perfscope'\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    heavy = {'pandas', 'scipy', 'torch', 'numpy.ma', 'rich', 'multiprocessing'}\n"
        "    heavy |= {'perfscope.sources.joblog', 'perfscope.tables.joblog'}\n"
        "    print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    ended = run_program([sys.executable, "-c", program, "analyze", "--only", "host", trace], cwd=tmp_path)
    assert ended.stderr.splitlines() == ["[]"]


def test_two_runs_are_answered_for_each_apart_and_the_same_run_once(tmp_path: Path) -> None:
    other = ROOT / "fixtures" / "runs" / "h200_zero2"
    words = ("analyze", "--only", "steps", "--format", "json")
    single = json.loads(perfscope(*words, REAL_RUN, cwd=tmp_path).stdout)
    twice = json.loads(perfscope(*words, REAL_RUN, f"{REAL_RUN}/", cwd=tmp_path).stdout)
    assert twice == single
    both = json.loads(perfscope(*words, REAL_RUN, other, cwd=tmp_path).stdout)
    assert both["schema"] == "perfscope/analyses/1"
    assert both["warnings"] == single.pop("warnings") == []
    assert both["analyses"][0] == single
    assert both["analyses"][1]["results"] == json.loads(perfscope(*words, other, cwd=tmp_path).stdout)["results"]
