"""Files that are no log, logs of two jobs, logs in other languages, and folders of very many files."""

from __future__ import annotations

import gzip
import os
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from perfscope.analyzers.logs.summary import summarize_log
from perfscope.errors import SourceError
from perfscope.sources.joblog import read_log
from tests.conftest import ROOT
from tests.sources.joblog.lines import megatron, seconds

NOISE = np.random.default_rng(1).bytes(200_000)
BINARIES = {
    "picture.png": b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + NOISE,
    "weights.pt": b"PK\x03\x04\x00\x00\x08\x08" + NOISE,
    "weights.pkl": pickle.dumps({"weights": NOISE}),
    "holes": bytes(300_000),
    "noise.gz": gzip.compress(NOISE),
}


@pytest.mark.parametrize("name", BINARIES)
def test_a_binary_file_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(BINARIES[name])
    with pytest.raises(SourceError, match=r"binary|damaged"):
        read_log(path)


@pytest.mark.parametrize("name", ["logs.tar", "logs.tar.gz", "logs.zip"])
def test_an_archive_of_logs_is_not_read_as_one_job(name: str, tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"run{number}.log").write_text("".join(megatron(n, 1000.0 * number) for n in range(1, 40)))
    path = tmp_path / name
    if name.endswith("zip"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.write(tmp_path / "run1.log")
    else:
        with tarfile.open(path, "w:gz" if name.endswith("gz") else "w") as tar:
            tar.add(tmp_path / "run1.log")
            tar.add(tmp_path / "run2.log")
    with pytest.raises(SourceError, match="is an archive"):
        read_log(path)


def test_a_log_that_inflates_to_a_bomb_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.log.gz"
    path.write_bytes(gzip.compress(b"\n" * (32 << 20)))
    with pytest.raises(SourceError, match="more than 200 times its size"):
        read_log(path)


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "pipe.log"
    os.mkfifo(path)
    lines = "".join(megatron(n, 1000.0) for n in range(1, 400)).encode()
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(path.write_bytes, lines)
        assert len(seconds(read_log(path))) == 399
        assert written.result() == len(lines)


@pytest.mark.parametrize(
    "alter",
    [
        lambda line: "(Trainer pid=1234, ip=10.0.0.1) " + line,
        lambda line: "warnings.py:12: UserWarning: 3.5\n" + line,
        lambda line: f'{{"log":"{line[:-1]}\\n","stream":"stdout"}}\n',
        lambda line: "^[[32m" + line.rstrip("\n") + "^[[0m\n",
    ],
    ids=["ray", "warnings", "docker", "colours of cat -v"],
)
@pytest.mark.parametrize("name", ["olmo", "fairseq-tpu"])
def test_what_stands_around_lines_makes_no_other_figure(
    alter: Callable[[str], str], name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    published, path = ROOT / "fixtures" / "published_logs" / f"{name}.log", tmp_path / "run.log"
    path.write_text("".join(alter(line) for line in published.read_text().splitlines(keepends=True)))
    figure, truth = (summarize_log(read_log(log)).times.median_s for log in (path, published))
    is_rewritten = any(name in request.node.callspec.id for name in ("docker", "colours"))
    assert figure == truth or (figure is None and name == "olmo" and is_rewritten)


@pytest.mark.parametrize("encoding", ["utf-8", "gbk", "utf-16"])
def test_messages_in_other_languages_change_nothing(encoding: str, tmp_path: Path) -> None:
    words = "训练开始第一轮" if encoding == "gbk" else "훈련 학습 тест 训练"
    path = tmp_path / "run.log"
    text = "".join(f"{words} {n}\n" + megatron(n, 1000.0) for n in range(1, 200))
    path.write_bytes(text.encode(encoding))
    summary = summarize_log(read_log(path))
    assert (summary.framework, summary.times.median_s, summary.iterations) == ("megatron-lm", 1.0, 199)
