"""`perfscope report build`: blocks are what their raw files say, in any clone; a stale one is named line by line."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from perfscope.regenerate.build import git_blob
from tests.commands.report_cli import Run, run
from tests.conftest import ROOT


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The reports and their raw files, outside of any git repository."""
    for folder in ("reports", "fixtures/published", "fixtures/checkpoints"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    for other in (ROOT / "fixtures").iterdir():  # own_copy() before writing to these
        if not (tmp_path / "fixtures" / other.name).exists():
            (tmp_path / "fixtures" / other.name).symlink_to(other)
    return tmp_path


def own_copy(copy: Path, file: str) -> Path:
    """A raw file that may be written: its folder is copied where it is a link to ours."""
    folder = copy / "fixtures" / file.split("/")[1]
    if folder.is_symlink():
        folder.unlink()
        shutil.copytree(ROOT / "fixtures" / folder.name, folder)
    return copy / file


def check(capsys: pytest.CaptureFixture[str], path: Path) -> Run:
    return run(capsys, "report", "build", "--check", path, "--format", "json")


def stale_lines(answer: Run) -> list[str]:
    blocks = [block for report in answer.data["results"]["reports"] for block in report["blocks"]]
    return [line for block in blocks for line in block["lines"]]


class TestOurReports:
    def test_every_report_is_what_its_raw_files_say(self, capsys: pytest.CaptureFixture[str]) -> None:
        answer = run(capsys, "report", "build", "--check", ROOT / "reports")
        assert answer.code == 0, answer.out
        assert "0 stale" in answer.out

    def test_they_are_the_same_bytes_outside_of_git(self, copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
        before = {path.name: path.read_bytes() for path in (copy / "reports").glob("*.md")}
        assert run(capsys, "report", "build", copy / "reports").code == 0
        assert {path.name: path.read_bytes() for path in (copy / "reports").glob("*.md")} == before

    @pytest.mark.parametrize(
        ("report", "file", "change", "cells"),
        [
            (
                "bigscience-gpt2.md",
                "fixtures/published/bigscience_gpt2/deepspeed_3d_zero1.csv",
                ("64,52B,Y,5e8,2,8,128,4,1024,137s,48.8", "64,52B,Y,5e8,2,8,128,4,1024,137s,49.7"),
                {
                    ("TFLOPs", "48.8", "49.7"),
                    ("Verdict", "TFLOPs: wrong", "agrees"),
                },
            ),
            (
                "megatron-gpt-a100.md",
                "fixtures/published/megatron_deepspeed_gpt/sizes.csv",
                ("1.3B,26B,4,A100 40GB,8d,4", "1.3B,26B,4,A100 40GB,7d,4"),
                {("Time", "8d", "7d"), ("TFLOPs per GPU", "97.8", "111.8")},
            ),
        ],
    )
    def test_the_cell_and_what_follows_from_it_are_named(
        self,
        request: pytest.FixtureRequest,
        report: str,
        file: str,
        change: tuple[str, str],
        cells: set[tuple[str, str, str]],
    ) -> None:
        copy, capsys = request.getfixturevalue("copy"), request.getfixturevalue("capsys")
        raw = own_copy(copy, file)
        assert change[0] in raw.read_text()
        raw.write_text(raw.read_text().replace(*change))
        answer = check(capsys, copy / "reports" / report)
        assert answer.code == 3
        lines = stale_lines(answer)
        for _, reported, rebuilt in cells:
            assert any(line.startswith("-") and reported in line for line in lines)
            assert any(line.startswith("+") and rebuilt in line for line in lines)
        run(capsys, "report", "build", copy / "reports" / report)
        assert check(capsys, copy / "reports" / report).code == 0


def write_report(folder: Path, command: str, content: str = "") -> Path:
    path = folder / "report.md"
    path.write_text(
        f"# A report\n\nText.\n\n<!-- perfscope: {command} -->\n{content}<!-- /perfscope -->\n\nMore text.\n"
    )
    return path


RAW = "GPUs,Samples/s,Speed-up\n1,100,1\n4,380,3.8\n"


class TestBlocks:
    def test_a_block_states_its_files_and_its_command(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "raw.csv").write_text(RAW)
        path = write_report(tmp_path, "report table raw.csv")
        assert run(capsys, "report", "build", path).code == 0
        blob = git_blob(RAW.encode())[:12]
        assert f"_From `raw.csv` (blob `{blob}`) by `perfscope report build`._" in path.read_text()
        assert path.read_text().startswith("# A report\n\nText.\n\n<!-- perfscope:")
        assert path.read_text().endswith("<!-- /perfscope -->\n\nMore text.\n")
        assert subprocess.check_output(["git", "hash-object", "raw.csv"], cwd=tmp_path, text=True)[:12] == blob

    def test_paths_start_at_the_nearest_folder_above_where_they_exist(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "reports" / "deep").mkdir(parents=True)
        (tmp_path / "raw").mkdir()
        (tmp_path / "raw" / "runs.csv").write_text(RAW)
        path = write_report(tmp_path / "reports" / "deep", "report table raw/runs.csv")
        assert run(capsys, "report", "build", tmp_path / "reports").code == 0
        assert "| 380" in path.read_text()
        assert str(tmp_path) not in path.read_text()

    def test_chosen_sections_and_heading_levels(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = write_report(tmp_path, "checkpoint --size 7B --gpus 8 :: Planned size")
        assert run(capsys, "report", "build", path).code == 0
        assert "\n### Planned size\n" in path.read_text()
        assert "# A checkpoint of" not in path.read_text()

    def test_hidden_folders_and_files_without_a_marker_are_left_out(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / ".venv").mkdir()
        write_report(tmp_path / ".venv", "nonsense")
        (tmp_path / "binary.md").write_bytes(b"\0\0")
        write_report(tmp_path, "checkpoint --size 7B")
        answer = run(capsys, "report", "build", tmp_path, "--format", "json")
        assert [Path(report["path"]).name for report in answer.data["results"]["reports"]] == ["report.md"]

    def test_a_marker_in_code_is_text(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "doc.md"
        path.write_text("```\n<!-- perfscope: tflops -->\n<!-- /perfscope -->\n```\n")
        answer = run(capsys, "report", "build", path)
        assert answer.code == 1
        assert "contains no block" in answer.err

    @pytest.mark.parametrize(
        ("command", "problem"),
        [
            ("profile -- rm -rf .", "is not a read-only command"),
            ("report build .", "is not a read-only command"),
            ("report refresh x.md", "is not a read-only command"),
            ("plan --pp 4 --microbatches 8 --svg out.svg", "writes a file"),
            ("checkpoint nowhere", "does not exist"),
            ("checkpoint --size 52Q", "is not a model size"),
            ("checkpoint --nonsense", "o such option: --nonsense"),
            ("checkpoint --size 7B :: Nonsense", "there is no section 'Nonsense'"),
            ("checkpoint --size 7B --format json", "a block holds markdown"),
            ("checkpoint 'x", "the command cannot be read"),
        ],
    )
    def test_a_block_that_cannot_be_regenerated_is_named_and_nothing_is_written(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, problem: str
    ) -> None:
        path = write_report(tmp_path, command, "old\n")
        before = path.read_bytes()
        answer = run(capsys, "report", "build", path)
        assert answer.code == 1
        assert "line 5" in answer.err
        assert problem in answer.err
        assert "Traceback" not in answer.err
        assert path.read_bytes() == before

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("<!-- perfscope: tflops -->\n\ntext\n", "line 1: the block has no end"),
            (
                "<!-- perfscope: tflops -->\n\n<!-- perfscope: tflops -->\n<!-- /perfscope -->\n",
                "line 1: the block has no end",
            ),
            ("<!-- /perfscope -->\n", "line 1: a block ends that did not begin"),
        ],
    )
    def test_markers_that_do_not_match_are_named(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, problem: str
    ) -> None:
        (tmp_path / "report.md").write_text(text)
        answer = run(capsys, "report", "build", tmp_path / "report.md")
        assert answer.code == 1
        assert problem in answer.err

    def test_a_read_only_report_is_not_replaced(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = write_report(tmp_path, "checkpoint --size 7B")
        path.chmod(0o444)
        before = path.read_bytes()
        answer = run(capsys, "report", "build", path)
        assert answer.code == 1
        assert "is read-only" in answer.err
        assert path.read_bytes() == before
