"""`perfscope checkpoint`: the planned size of a checkpoint, and timed saves of a log or as typed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.commands.report_cli import run
from tests.sources.checkpoints.checkpoint_files import FIXTURES, write_holes


def test_181b_on_256_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run(capsys, "checkpoint", "--size", "181B", "--gpus", "256")
    assert answer.code == 0
    for figure in ("0.362", "0.329", "2.172", "1.975", "1.414", "1.317", "8.484", "7.902"):
        assert figure in answer.out


def test_the_numbers_of_its_json_are_exact(capsys: pytest.CaptureFixture[str]) -> None:
    plan = run(capsys, "checkpoint", "--size", "181B", "--gpus", "256", "--format", "json").data["results"]["plan"]
    assert plan["weights"]["bytes"] == 362 * 10**9
    assert plan["optimizer"]["bytes"] == 2172 * 10**9
    assert plan["weights"]["tib"] == pytest.approx(362e9 / 2**40)
    assert plan["optimizer"]["per_file_bytes"] == pytest.approx(2172e9 / 256)


def test_a_save_time_gives_a_speed(capsys: pytest.CaptureFixture[str]) -> None:
    # 14 bytes x 181e9 in 19.49531 s
    save = run(
        capsys, "checkpoint", "--size", "181B", "--gpus", "256", "--save-time", "19495.31ms", "--format", "json"
    ).data["results"]["saves"]["saves"][0]
    assert save["gb_per_s"] == pytest.approx(14 * 181 / 19.49531)


def test_an_asynchronous_save_of_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_megatrons_own_timer_in_its_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = FIXTURES.parent / "logs" / "megatron_core_tp2_pp2_h200.log"
    listing = write_holes("megatron_legacy_h200", tmp_path)
    saves = run(capsys, "checkpoint", listing, "--save-time", log, "--format", "json").data["results"]["saves"]
    [save] = saves["saves"]
    assert (save["step"], save["blocked_s"]) == (15, 4.99596)  # save-checkpoint ....: (4984.48, 4995.96)
    assert save["gb_per_s"] == pytest.approx(13.177708128 / 4.99596)
    times_ms = [float(match) for match in re.findall(r"per iteration \(ms\): ([\d.]+)", log.read_text())]
    assert saves["blocked_share"] == pytest.approx(4995.96 / (sum(times_ms) + 4995.96), rel=1e-3)


@pytest.mark.parametrize(
    ("options", "code", "problem"),
    [
        ((), 2, "no checkpoint and no size"),
        (("--size", "52Q"), 2, "52Q"),
        (("--size", "52B", "--gpus", "0"), 2, "--gpus"),
        (("--size", "52B", "--zero", "4"), 2, "--zero"),
        ((FIXTURES / "deepspeed_zero1", "--gpus", "4"), 2, "--gpus plans"),
        (("--size", "1B", "--save-time", FIXTURES / "README.md"), 1, "states no checkpoint save"),
        (("--size", "1B", "--save-time", "nowhere.log"), 2, "'nowhere.log' is not a time"),
    ],
)
def test_what_cannot_be_is_said(
    capsys: pytest.CaptureFixture[str], options: tuple[Any, ...], code: int, problem: str
) -> None:
    answer = run(capsys, "checkpoint", *options)
    assert answer.code == code
    assert problem in answer.err
