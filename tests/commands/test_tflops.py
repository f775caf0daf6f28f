"""`perfscope tflops`: the figure of the one-liner, with its assumptions."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from perfscope.models.hardware import gpus
from tests.conftest import ROOT, perfscope, run

QUESTION = ["tflops", "--size", "52B", "--gbs", "1024", "--time", "127"]


def answer(*words: str, cwd: Path) -> dict[str, Any]:
    ended = perfscope("tflops", *words, "--format", "json", cwd=cwd)
    assert ended.code == 0, ended.stderr
    document: dict[str, Any] = json.loads(ended.stdout)
    return document


def test_the_question_of_the_readme(tmp_path: Path) -> None:
    ended = perfscope(*QUESTION, cwd=tmp_path)
    assert ended.code == 0
    assert "| 53.7 |" in " ".join(ended.stdout.split())
    for assumption in ("64 GPUs", "sequence length 1024", "checkpointing full"):
        assert assumption in ended.stdout


def test_json_names_what_was_assumed(tmp_path: Path) -> None:
    document = answer(*QUESTION[1:], cwd=tmp_path)
    assert document["schema"] == "perfscope/tflops/1"
    # 52e9 x 4 x 2 x 1024 x 1024 / (127 x 64 x 1e12)
    assert document["tflops_per_gpu"] == pytest.approx(53.667, abs=5e-4)
    assert document["assumptions"] == {"gpus": 64, "seq_len": 1024, "checkpointing": "full"}


def test_every_way_to_write_the_time_is_the_same_answer(tmp_path: Path) -> None:
    answers = [
        answer("--size", "52B", "--gbs", "1024", "--time", text, cwd=tmp_path)["tflops_per_gpu"]
        for text in ("127", "127s", "2m7s", "127000ms")
    ]
    assert len(set(answers)) == 1


def test_without_checkpointing_three_passes_count(tmp_path: Path) -> None:
    full = answer(*QUESTION[1:], cwd=tmp_path)["tflops_per_gpu"]
    none = answer(*QUESTION[1:], "--checkpointing", "none", "--gpus", "32", "--seq-len", "512", cwd=tmp_path)
    assert none["tflops_per_gpu"] == pytest.approx(full * 3 / 4)
    assert none["assumptions"] == {"gpus": 32, "seq_len": 512, "checkpointing": "none"}


def test_more_than_the_peak_is_a_bug_in_the_calculation_and_still_an_answer(tmp_path: Path) -> None:
    words = ["tflops", "--size", "52B", "--gbs", "1024", "--time", "50", "--gpu", "v100-sxm"]
    ended = perfscope(*words, "--format", "json", cwd=tmp_path)
    assert ended.code == 0
    assert "bug in the calculation" in ended.stderr
    assert "125" in json.loads(ended.stdout)["warnings"][0]
    assert not answer(*QUESTION[1:], cwd=tmp_path)["warnings"]


@pytest.mark.parametrize(
    "words",
    [
        ["--size", "52Q", "--gbs", "1024", "--time", "127"],
        ["--size", "52B", "--gbs", "0", "--time", "127"],
        ["--size", "52B", "--gbs", "-1", "--time", "127"],
        ["--size", "52B", "--gbs", "1024", "--time", "0"],
        ["--size", "52B", "--gbs", "1024", "--time", "127", "--gpus", "-4"],
        ["--size", "52B", "--gbs", "1024", "--time", "127", "--seq-len", "0"],
        ["--size", "52B", "--gbs", "many", "--time", "127"],
        ["--size", "52B"],
    ],
)
def test_what_cannot_be_right_is_one_line_and_exit_2(words: list[str], tmp_path: Path) -> None:
    ended = perfscope("tflops", *words, cwd=tmp_path)
    assert (ended.code, ended.stdout) == (2, "")
    assert "Traceback" not in ended.stderr


def test_nothing_heavy_is_imported(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from perfscope.cli import main\n"
        f"sys.argv = ['perfscope', *{QUESTION!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "print(sorted({'torch', 'numpy', 'pandas', 'scipy', 'deepspeed'} & set(sys.modules)))\n"
    )
    ended = run([sys.executable, "-c", code], tmp_path)
    assert ended.stdout.splitlines()[-1] == "[]", ended.stderr


def test_every_peak_has_a_source() -> None:
    assert all(gpu.source and gpu.dense_tflops for gpu in gpus())


def test_a_foreign_module_of_the_same_name_is_named(tmp_path: Path) -> None:
    (tmp_path / "perfscope").mkdir()
    (tmp_path / "perfscope" / "__init__.py").write_text("")
    code = (
        "import sys\n"
        f"sys.path[:0] = [{str(tmp_path)!r}]\n"
        f"sys.path.append({str(ROOT / 'perfscope')!r})\n"
        "import entry\n"
        "entry.main()\n"
    )
    ended = run([sys.executable, "-c", code], tmp_path, PYTHONPATH="")
    assert ended.code == 1
    assert "another project's" in ended.stderr
    assert str(tmp_path) in ended.stderr
