"""`perfscope tflops`: the figure of the one-liner, with its assumptions."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, run

QUESTION = ["tflops", "--size", "52B", "--gbs", "1024", "--time", "127"]


@pytest.mark.parametrize("words", [QUESTION, ["plan", "--pp", "2", "-m", "2"]], ids=["tflops", "plan"])
def test_nothing_heavy_is_imported(tmp_path: Path, words: list[str]) -> None:
    code = (
        "import sys\n"
        "from perfscope.cli import main\n"
        f"sys.argv = ['perfscope', *{words!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "print(sorted({'torch', 'numpy', 'pandas', 'scipy', 'deepspeed'} & set(sys.modules)))\n"
    )
    ended = run([sys.executable, "-c", code], tmp_path)
    assert ended.stdout.splitlines()[-1] == "[]", ended.stderr


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
