"""Claims about ``perfscope whatif --operations``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from perfscope.cli import app
from perfscope.errors import PerfscopeError, SourceError
from perfscope.sources.operations.reading import COLUMNS, read_operations
from tests.analyzers.job_replay.oracle import ToyJob
from tests.conftest import ROOT, perfscope

TRACE = ROOT / "fixtures" / "jobs" / "stage_imbalance" / "trace-ST.parquet"
RUN = ROOT / "fixtures" / "runs" / "h200_megatron_pp2"


def _write_csv(path: Path, **changes: str) -> Path:
    """The operations of a toy job as CSV; a change replaces the value of a column in the first row."""
    table = ToyJob().operations()
    lines = [",".join(COLUMNS)]
    for row in range(len(table)):
        values = {
            "dp_rank": table.pipeline[row],
            "stage": table.stage[row],
            "rank": table.rank[row],
            "step": table.step[row],
            "optype": table.kinds[table.kind[row]],
            "start_ts": table.start_ns[row] / 1e9,
            "duration": table.duration_ns[row] / 1e9,
            "seq_id": table.sequence[row],
            "mc": table.chunk[row],
            "gmc": table.global_chunk[row],
            **(changes if row == 0 else {}),
        }
        lines.append(",".join(str(values[name]) for name in COLUMNS))
    path.write_text("\n".join(lines) + "\n")
    return path


def _answer(*words: str | Path) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["whatif", "--operations", *map(str, words), "--format", "json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


def test_the_answer_has_the_figures_of_the_paper() -> None:
    pytest.importorskip("pyarrow")
    found = _answer(TRACE)
    assert found["schema"] == "perfscope/whatif/1"
    assert found["slowdown"] == pytest.approx(1.1787, abs=1e-4)
    assert found["m_s"] == pytest.approx(1.2194, abs=1e-4)
    assert found["m_w"] == pytest.approx(0.0314, abs=1e-4)
    assert found["m_w_ranks"] == [7]
    assert list(found["by_stage"]) == ["0", "1", "2", "3"]
    assert max(found["by_stage"], key=found["by_stage"].get) == "3"
    assert set(found["by_worker"]) == {str(rank) for rank in range(8)}
    assert len(found["by_step"]) == found["steps"] == 32
    assert abs(found["replay_error"]) <= 0.0192
    assert found["slowdown"] == found["replayed_step_us"] / found["ideal_step_us"]


def test_a_run_without_traces_is_answered_from_its_micro_batches() -> None:
    found = _answer(RUN)
    assert set(found["by_worker"]) == {"0", "1"}
    assert found["by_stage"]["1"] > found["by_stage"]["0"]


def test_csv_is_read_and_drawn(tmp_path: Path) -> None:
    source = _write_csv(tmp_path / "job.csv")
    svg, timeline = tmp_path / "map.svg", tmp_path / "ideal.json"
    found = _answer(source, "--svg", svg, "--timeline", timeline)
    assert found["slowdown"] == pytest.approx(1)
    assert (found["m_w"], found["m_s"]) == (None, None)
    assert "nothing to explain" in found["m_w_reason"]
    assert svg.read_text().startswith("<svg")
    assert json.loads(timeline.read_text())["traceEvents"]


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("duration", "-0.5", "1 operations with a negative duration, the first in row 0"),
        ("duration", "", "has no number in duration, in row 0"),
        ("start_ts", "inf", "has no number in start_ts"),
        ("seq_id", "0.5", "has a fraction in seq_id"),
        ("optype", "", "has no optype in row 0"),
        ("duration", "soon", "has text in duration"),
        ("stage", "9", "they are to count from 0 without a gap"),
    ],
)
def test_a_value_that_no_operation_has_is_refused(tmp_path: Path, column: str, value: str, problem: str) -> None:
    with pytest.raises(SourceError, match=problem):
        read_operations(_write_csv(tmp_path / "job.csv", **{column: value}))


def test_a_file_that_has_no_operations_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.csv"
    path.write_text("step,rank\n1,2\n")
    with pytest.raises(SourceError, match="lacks the columns dp_rank, stage, optype"):
        read_operations(path)
    path.write_text(",".join(COLUMNS) + "\n")
    with pytest.raises(SourceError, match="has no operations"):
        read_operations(path)
    path.write_text("")
    with pytest.raises(SourceError, match="is neither parquet nor CSV"):
        read_operations(path)
    path.write_bytes(b"PAR1 and nothing else")
    with pytest.raises(PerfscopeError, match=r"is neither parquet nor CSV|needs pyarrow"):
        read_operations(path)
    with pytest.raises(SourceError, match="cannot be read"):
        read_operations(tmp_path / "absent.parquet")


def test_parquet_without_pyarrow_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(PerfscopeError, match="needs pyarrow") as caught:
        read_operations(TRACE)
    assert caught.value.hint is not None
    assert "perfscope-toolkit[parquet]" in caught.value.hint


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((), "nothing to replay"),
        (("--svg", "a.svg", "RUN"), "need --operations"),
        (("--operations", "job.csv", "RUN"), "takes the place of paths"),
        (("--operations", "job.csv", "--svg", "a.png"), "does not end in .svg"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path: Path, words: tuple[str, ...], problem: str) -> None:
    ended = perfscope("whatif", *words, cwd=tmp_path)
    assert ended.code == 2
    assert problem in ended.stderr


def test_a_run_without_a_pipeline_says_so(tmp_path: Path) -> None:
    ended = perfscope("whatif", "--operations", ROOT / "fixtures" / "runs" / "cpu_trainer", cwd=tmp_path)
    assert ended.code == 1
    assert "no rank timed micro-batches" in ended.stderr
