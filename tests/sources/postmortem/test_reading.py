"""Runs of real trainings that stopped are read as they were left, damaged ones, too."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from benchmarks import kept_run
from perfscope.analyzers.postmortem.diagnosis import diagnose
from perfscope.analyzers.postmortem.places import Reason
from perfscope.sources.postmortem import read_post_mortem
from tests.conftest import ROOT, perfscope

RUNS = ROOT / "fixtures" / "postmortem"
CASES = {
    "ddp-group-2": (Reason.GROUP, (0,), 142),
    "deepspeed-loader-2": (Reason.LOADING, (1,), 38),
    "pipeline-host-2": (Reason.HOST, (0,), 153),
    "ddp-crash-2": (Reason.CRASH, (1,), 128),
    "ddp-clean-2": (Reason.NOTHING, (), None),
    # gloo ended rank 0, and the launcher the other before it could dump its collectives
    "ddp-skip-2": (Reason.UNKNOWN, (0,), 148),
    # on two H200
    "nccl/ddp-skip-2": (Reason.SKIPPED, (1,), None),
    "nccl/ddp-group-2": (Reason.GROUP, (0,), 142),
    "nccl/pipeline-skip-2": (Reason.SKIPPED, (1,), 142),
    "nccl/pipeline-size-2": (Reason.SIZE, (0,), 142),
    "nccl/pipeline-loader-2": (Reason.LOADING, (1,), 38),
    "nccl/pipeline-device-2": (Reason.DEVICE, (0,), 188),
}


@pytest.mark.parametrize("name", CASES)
def test_a_recorded_run_has_its_rank_reason_and_line(name: str) -> None:
    reason, ranks, line = CASES[name]
    diagnosis = diagnose(read_post_mortem(kept_run(RUNS / name)))
    assert (diagnosis.reason, diagnosis.ranks) == (reason, ranks)
    assert (None if diagnosis.line is None else diagnosis.line.line) == line


def test_a_cut_dump_is_named_and_stacks_still_answer(tmp_path: Path) -> None:
    run = tmp_path / "RUN"
    shutil.copytree(kept_run(RUNS / "pipeline-host-2"), run)
    dump = run / "ranks" / "00001" / "recorder.1.generic.pickle"
    dump.write_bytes(dump.read_bytes()[:500])
    ended = perfscope("postmortem", "RUN", "--format", "json", cwd=tmp_path)
    assert ended.code == 4
    report = json.loads(ended.stdout)
    assert (report["reason"], report["ranks"]) == ("host stall", [0])
    assert "recorder.1.generic.pickle is not a complete dump" in ended.stderr


def test_a_full_disk_leaves_half_a_record_which_is_named(tmp_path: Path) -> None:
    run = tmp_path / "RUN"
    shutil.copytree(kept_run(RUNS / "deepspeed-loader-2"), run)
    incidents = run / "ranks" / "00001" / "incidents.jsonl"
    incidents.write_bytes(incidents.read_bytes()[:60])
    (run / "ranks" / "00000" / "stacks.1.txt").write_bytes(b"Thread 0x00")
    evidence = read_post_mortem(run)
    assert any("incidents.jsonl: ends in half a line" in text for text in evidence.damage)


def test_a_rank_that_never_started_is_named(tmp_path: Path) -> None:
    run = tmp_path / "RUN"
    shutil.copytree(kept_run(RUNS / "ddp-crash-2"), run)
    shutil.rmtree(run / "ranks" / "00001")
    report = json.loads(perfscope("postmortem", "RUN", "--format", "json", cwd=tmp_path).stdout)
    assert (report["reason"], report["ranks"]) == ("rank never started", [1])


def test_a_run_in_which_no_rank_started_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "RUN" / "ranks").mkdir(parents=True)
    ended = perfscope("postmortem", "RUN", cwd=tmp_path)
    assert ended.code == 1
    assert ended.stderr.splitlines()[0] == "perfscope: RUN holds nothing of any rank"


def test_of_a_restarted_rank_the_last_process_counts(tmp_path: Path) -> None:
    run = tmp_path / "RUN"
    shutil.copytree(kept_run(RUNS / "ddp-crash-2"), run)
    shutil.copytree(kept_run(RUNS / "ddp-clean-2") / "ranks" / "00000", run / "ranks" / "00000.1")
    shutil.copytree(kept_run(RUNS / "ddp-clean-2") / "ranks" / "00001", run / "ranks" / "00001.1")
    assert diagnose(read_post_mortem(run)).reason is Reason.NOTHING
