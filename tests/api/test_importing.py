"""``import perfscope`` costs a training process nothing, and gives everything that is public."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.conftest import ROOT, run


def test_the_import_loads_no_other_module(tmp_path: Path) -> None:
    program = "import sys\nbefore = set(sys.modules)\nimport perfscope\nprint(sorted(set(sys.modules) - before))"
    ended = run([sys.executable, "-S", "-c", program], tmp_path)
    assert ended.stdout == "['perfscope']\n"


def test_opening_a_run_loads_neither_torch_nor_pandas_nor_scipy(tmp_path: Path) -> None:
    program = (
        "import sys, perfscope\n"
        f"run = perfscope.open({str(ROOT / 'fixtures' / 'findings' / 'h200' / 'unpinned')!r})\n"
        "assert run.steps.count == 34\n"
        "assert all(finding.title and finding.advice for finding in run.findings)\n"
        "print(sorted({'torch', 'pandas', 'scipy', 'rich', 'typer'} & set(sys.modules)))"
    )
    assert run([sys.executable, "-c", program], tmp_path).stdout == "[]\n"


def test_a_program_that_uses_the_interface_is_typed(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from collections.abc import Iterator\n"
        "import perfscope\n"
        "def causes(path: str) -> Iterator[str]:\n"
        "    run = perfscope.open(path, workers=2)\n"
        "    for finding in run.findings:\n"
        '        yield f"{finding.title}: {finding.cost}: {finding.advice}"\n'
        "def idle_us(path: str) -> float | None:\n"
        "    breakdown = perfscope.open(path).results.breakdown\n"
        "    if not breakdown:\n"
        "        reason: str = breakdown.reason\n"
        "        print(reason)\n"
        "        return None\n"
        "    return sum(rank.total.idle_us for rank in breakdown.ranks)\n"
        "def is_slower(a: str, b: str) -> bool:\n"
        "    compared = perfscope.open(a).compare(perfscope.open(b))\n"
        "    change = compared.data['step_time']\n"
        "    return compared.verdict == 'slower' and change is not None and change['change'] > 0.03\n"
        "def median_s(run: perfscope.OpenedRun) -> float | None:\n"
        "    return run.steps.median_s\n"
    )
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import perfscope\nx: str = perfscope.open('RUN').steps.median_s\nperfscope.open(1)\n"
                     "perfscope.open('RUN').results.breakdown.rnaks\n")  # fmt: skip
    options = ["--strict", "--no-incremental", "--config-file", str(ROOT / "pyproject.toml"), "--follow-imports=silent"]
    ended = run([sys.executable, "-m", "mypy", *options, program], ROOT)
    assert ended.code == 0, ended.stdout
    ended = run([sys.executable, "-m", "mypy", *options, wrong], ROOT)
    assert ended.stdout.count("error:") == 3, ended.stdout
