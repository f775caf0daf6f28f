"""`perfscope checkpoint --size`: the planned size of a checkpoint."""

from __future__ import annotations

from typing import Any

import pytest

from tests.commands.report_cli import run
from tests.sources.checkpoints.checkpoint_files import FIXTURES


class TestPlan:
    def test_181b_on_256_gpus(self, capsys: pytest.CaptureFixture[str]) -> None:
        answer = run(capsys, "checkpoint", "--size", "181B", "--gpus", "256")
        assert answer.code == 0
        for figure in ("0.362", "0.329", "2.172", "1.975", "1.414", "1.317", "8.484", "7.902"):
            assert figure in answer.out

    def test_the_numbers_of_its_json_are_exact(self, capsys: pytest.CaptureFixture[str]) -> None:
        plan = run(capsys, "checkpoint", "--size", "181B", "--gpus", "256", "--format", "json").data["results"]["plan"]
        assert plan["weights"]["bytes"] == 362 * 10**9
        assert plan["optimizer"]["bytes"] == 2172 * 10**9
        assert plan["weights"]["tib"] == pytest.approx(362e9 / 2**40)
        assert plan["optimizer"]["per_file_bytes"] == pytest.approx(2172e9 / 256)

    @pytest.mark.parametrize(
        "arguments",
        [
            (),
            ("--size", "52Q"),
            ("--size", "52B", "--gpus", "0"),
            ("--size", "52B", "--zero", "4"),
            ("--size", "52B", "--save-time", "0"),
            (FIXTURES / "deepspeed_zero1", "--gpus", "4"),
        ],
    )
    def test_what_cannot_be_right_ends_with_2(
        self, capsys: pytest.CaptureFixture[str], arguments: tuple[Any, ...]
    ) -> None:
        answer = run(capsys, "checkpoint", *arguments)
        assert answer.code == 2
        assert "Traceback" not in answer.err

    def test_a_save_time_gives_a_speed(self, capsys: pytest.CaptureFixture[str]) -> None:
        # 14 bytes x 181e9 in 19.49531 s
        save = run(
            capsys, "checkpoint", "--size", "181B", "--gpus", "256", "--save-time", "19495.31ms", "--format", "json"
        ).data["results"]["saves"]["saves"][0]
        assert save["gb_per_s"] == pytest.approx(14 * 181 / 19.49531)
