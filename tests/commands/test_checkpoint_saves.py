"""`perfscope checkpoint` with timed saves: of a run, of a log, or as typed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.commands.report_cli import run
from tests.sources.checkpoints.checkpoint_files import FIXTURES


class TestSaves:
    """Saves that hooks timed on every rank: training is held for as long as the slowest one."""

    def write_run(self, folder: Path, records: dict[int, list[dict[str, Any]]]) -> Path:
        (folder / "run.json").write_text('{"command": ["train"]}')
        for rank, lines in records.items():
            place = folder / "ranks" / f"{rank:05d}"
            place.mkdir(parents=True)
            fact = {"rank": rank, "world_size": len(records), "host": "h", "pid": 1, "wall_ns": 1, "monotonic_ns": 1}
            (place / "rank.json").write_text(json.dumps({**fact, "python": "3.12"}))
            (place / "checkpoints.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
            steps = [{"step": n, "end_ns": n * 10**10, "source": "deepspeed"} for n in range(1, 12)]
            (place / "steps.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
        return folder

    def test_the_slowest_rank_counts_and_bytes_add_up(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        second = 10**9
        run_dir = self.write_run(
            tmp_path,
            {
                0: [{"start_ns": 0, "end_ns": 2 * second, "source": "deepspeed", "step": 5, "size_bytes": 3 * second}],
                1: [{"start_ns": 0, "end_ns": 4 * second, "source": "deepspeed", "step": 5, "size_bytes": 5 * second}],
            },
        )
        answer = run(capsys, "checkpoint", FIXTURES / "deepspeed_zero1", "--save-time", run_dir, "--format", "json")
        saves = answer.data["results"]["saves"]
        assert saves["blocked_share"] == pytest.approx(4 / 110)  # from the save to the end of the last step
        assert saves["saves"] == [
            {
                "step": 5,
                "ranks": 2,
                "blocked_s": 4.0,
                "blocked_share": pytest.approx(4 / 110),
                "slowest_rank": 1,
                "background_s": None,
                "staged_s": None,
                "drained_s": None,
                "files": None,
                "bytes": 8 * second,
                "gb_per_s": 2.0,
                "asynchronous": None,
                "source": "deepspeed",
                "path": None,
                "writing_ranks": [0, 1],
                "waiting_ranks": [],
                "absent_ranks": [],
            }
        ]

    def test_a_run_tells_its_saves_by_itself(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        second = 10**9
        record = {"start_ns": 0, "end_ns": 4 * second, "source": "deepspeed", "step": 5, "asynchronous": False}
        run_dir = self.write_run(tmp_path, {0: [{**record, "size_bytes": 8 * second}]})
        answer = run(capsys, "checkpoint", run_dir)
        assert "1 checkpoint save" in answer.out
        assert "blocking" in answer.out
        assert "Saves stalled training for 3.6% of the run without its start-up: 4.000 s of 110.000 s." in answer.out
        analyzed = run(capsys, "analyze", run_dir, "--only", "saves", "--format", "json").data["results"]["saves"]
        assert run(capsys, "checkpoint", run_dir, "--format", "json").data["results"]["saves"] == analyzed
        assert analyzed["saves"][0]["gb_per_s"] == 2.0
        (tmp_path / "unsized").mkdir()
        unsized = self.write_run(tmp_path / "unsized", {0: [record]})
        sized = run(capsys, "checkpoint", unsized, "--size", "1B", "--format", "json").data["results"]["saves"]
        assert sized["saves"][0]["gb_per_s"] == 3.5  # 14 GB in 4 s
        assert run(capsys, "checkpoint", run_dir, "--save-time", "3").code == 2

    def test_an_asynchronous_save_of_a_log(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        log = tmp_path / "run.log"
        log.write_text(
            "[2026-11-21 00:35:41.000000] saving checkpoint at iteration      10 to /ckpt in torch_dist format\n"
            "  [2026-11-21 00:35:41.500000] scheduled an async checkpoint save at iteration      10 to /ckpt\n"
            "  [2026-11-21 00:35:55.000000] successfully saved checkpoint from iteration      10 to /ckpt\n"
        )
        answer = run(capsys, "checkpoint", "--size", "1B", "--save-time", log, "--format", "json")
        [save] = answer.data["results"]["saves"]["saves"]
        assert (save["blocked_s"], save["drained_s"], save["gb_per_s"]) == (0.5, 14.0, 1.0)
        assert save["asynchronous"] is True

    def test_an_asynchronous_save_is_as_fast_as_it_lies_on_disk(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        second = 10**9
        record = {"start_ns": 0, "end_ns": second, "drained_ns": 10 * second, "asynchronous": True, "source": "dcp"}
        run_dir = self.write_run(tmp_path, {0: [record, {**record, "end_ns": 2 * second}]})
        answer = run(capsys, "checkpoint", "--size", "1B", "--save-time", run_dir, "--format", "json")
        saves = answer.data["results"]["saves"]["saves"]
        assert [save["blocked_s"] for save in saves] == [1.0, 2.0]
        assert [save["gb_per_s"] for save in saves] == [1.4, 1.4]  # 14 GB in 10 s
        assert "asynchronous" in run(capsys, "checkpoint", "--size", "1B", "--save-time", run_dir).out

    def test_megatrons_own_timer_in_its_log(self, capsys: pytest.CaptureFixture[str]) -> None:
        log = FIXTURES.parent / "logs" / "megatron_core_tp2_pp2_h200.log"
        listing = FIXTURES / "megatron_legacy_h200.csv"
        saves = run(capsys, "checkpoint", listing, "--save-time", log, "--format", "json").data["results"]["saves"]
        [save] = saves["saves"]
        assert (save["step"], save["blocked_s"]) == (15, 4.99596)  # save-checkpoint ....: (4984.48, 4995.96)
        assert save["gb_per_s"] == pytest.approx(13.177708128 / 4.99596)
        times_ms = [float(match) for match in re.findall(r"per iteration \(ms\): ([\d.]+)", log.read_text())]
        assert saves["blocked_share"] == pytest.approx(4995.96 / (sum(times_ms) + 4995.96), rel=1e-3)

    @pytest.mark.parametrize(
        ("options", "code", "problem"),
        [
            (("--save-time", FIXTURES / "README.md"), 1, "states no checkpoint save"),
            (("--save-time", "nowhere.log"), 2, "'nowhere.log' is not a time"),
        ],
    )
    def test_saves_that_nobody_tells_of(
        self, capsys: pytest.CaptureFixture[str], options: tuple[Any, ...], code: int, problem: str
    ) -> None:
        answer = run(capsys, "checkpoint", "--size", "1B", *options)
        assert answer.code == code
        assert problem in answer.err

    def test_a_run_without_a_timed_save_says_so(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        answer = run(capsys, "checkpoint", "--size", "1B", "--save-time", self.write_run(tmp_path, {0: []}))
        assert answer.code == 1
        assert "contains no timed checkpoint save" in answer.err
