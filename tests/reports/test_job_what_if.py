"""Claims about reports/job-what-if.md and the page that explains it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from perfscope.cli import app
from tests.conftest import ROOT

pytest.importorskip("pyarrow")

REPORT = ROOT / "reports" / "job-what-if.md"
FOLDERS = {"ST": ROOT / "fixtures" / "jobs" / "stage_imbalance", "AR": ROOT / "fixtures" / "jobs" / "slow_worker"}
ROW = re.compile(r"^\| `(ST|AR)` \| ([\w ]+) \| (\S+) \| (\S+) \|$", re.MULTILINE)


def _answer(trial: str, *words: str) -> dict[str, Any]:
    source = FOLDERS[trial] / f"trace-{trial}.parquet"
    result = CliRunner().invoke(app, ["whatif", "--operations", str(source), "--format", "json", *words])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert isinstance(document, dict)
    return document


@pytest.mark.parametrize("trial", FOLDERS)
def test_the_table_has_both_answers(trial: str) -> None:
    answer = _answer(trial)
    authors = {
        **json.loads((FOLDERS[trial] / f"result-{trial}.json").read_text()),
        **json.loads((FOLDERS[trial] / f"mw-{trial}.json").read_text()),
        **json.loads((FOLDERS[trial] / f"ms-{trial}.json").read_text()),
    }
    expected = {
        "S": (answer["slowdown"], authors["blocking_slowdown"]),
        "M_W": (answer["m_w"], authors["Mw"]),
        "M_S": (answer["m_s"], authors["Ms"]),
        "measured over replayed": (
            answer["measured_step_us"] / answer["replayed_step_us"],
            authors["launch_slowdown"],
        ),
    }
    rows = {name: (mine, theirs) for of, name, mine, theirs in ROW.findall(REPORT.read_text()) if of == trial}
    assert rows == {name: (f"{mine:.5f}", f"{theirs:.5f}") for name, (mine, theirs) in expected.items()}


def test_the_drawing_is_that_of_the_command(tmp_path: Path) -> None:
    _answer("ST", "--svg", str(tmp_path / "map.svg"))
    assert (tmp_path / "map.svg").read_text() == REPORT.with_suffix(".svg").read_text()


def test_every_key_that_the_guide_names_is_printed() -> None:
    section = (ROOT / "docs" / "whatif.md").read_text().partition("## Stragglers of a whole job")[2]
    sentence = section.partition("`--format json` gives")[2].partition("## JSON")[0].partition("What waits")[0]
    keys = set(re.findall(r"`([a-z_]+)`", sentence))
    assert {"slowdown", "by_worker", "by_stage", "by_operation", "m_w", "m_s"} < keys <= set(_answer("ST"))
