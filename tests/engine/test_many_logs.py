"""Many logs are summarized by several processes as one process does it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perfscope.analyzers.logs.setup import Overrides
from perfscope.commands import logs as command
from perfscope.engine import many_logs
from perfscope.engine.many_logs import Answer, summarize_logs
from perfscope.engine.progress_lines import with_lines
from tests.commands.report_cli import run
from tests.sources.joblog.lines import megatron


def texts(answers: list[tuple[Path, Answer]]) -> list[str]:
    """Everything that is known of every log."""
    return [answer if isinstance(answer, str) else repr(answer.data()) for _, answer in answers]


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Logs of three lines, and a binary file, an empty one, one that vanished and a large one among them."""
    paths = [tmp_path / f"run{number}.log" for number in range(30)]
    for number, path in enumerate(paths):
        path.write_text("".join(megatron(n, 1000.0 + number) for n in range(1, 4)))
    paths[3].write_bytes(bytes(range(32)) * 4000)
    paths[7].write_bytes(b"")
    paths[11].unlink()
    paths[13].write_text("".join(megatron(n, 2000.0) for n in range(1, 5000)))
    return paths


def test_several_processes_answer_as_one_does(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = Overrides(warmup=1)
    alone = list(summarize_logs(paths, overrides))
    monkeypatch.setattr(many_logs, "_MANY", 1)
    monkeypatch.setattr(many_logs, "_CHUNK", 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    together = list(summarize_logs(paths, overrides))
    assert [path for path, _ in together] == paths
    assert texts(together) == texts(alone)
    assert [isinstance(answer, str) for _, answer in together].count(True) == 2


def test_a_line_of_progress_is_written_now_and_then(capfd: pytest.CaptureFixture[str]) -> None:
    assert list(with_lines(iter(range(3)), 3, period_s=0)) == [0, 1, 2]
    assert "2 of 3 files are read" in capfd.readouterr().err


def test_more_logs_than_anybody_reads_are_refused(
    paths: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "_MOST_LOGS", 20)
    answer = run(capsys, "logs", paths[0].parent)
    assert answer.code == 2
    assert "there are 29 logs; at most 20 are read at once" in answer.err


def test_a_process_that_is_killed_loses_no_log(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    parent = os.getpid()
    summarize = many_logs._summarize

    def die_once(path: Path, overrides: Overrides) -> Answer:
        if os.getpid() != parent and path == paths[9]:
            os._exit(9)
        return summarize(path, overrides)

    alone = texts(list(summarize_logs(paths, Overrides())))
    monkeypatch.setattr(many_logs, "_summarize", die_once)
    monkeypatch.setattr(many_logs, "_MANY", 1)
    monkeypatch.setattr(many_logs, "_CHUNK", 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert texts(list(summarize_logs(paths, Overrides()))) == alone
