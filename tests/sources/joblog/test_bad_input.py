"""Files that are no log, logs of two jobs, logs in other languages, and folders of very many files."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from perfscope.analyzers.logs.summary import summarize_log
from perfscope.errors import SourceError
from perfscope.sources.joblog import find_logs, read_log
from tests.conftest import ROOT
from tests.ratios import ROUNDS, assert_ratio
from tests.sources.joblog.lines import megatron, seconds

NOISE = np.random.default_rng(1).bytes(200_000)
BINARIES = {
    "picture.png": b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + NOISE,
    "program": b"\x7fELF\x02\x01\x01\x00" + bytes(8) + NOISE,
    "weights.pt": b"PK\x03\x04\x00\x00\x08\x08" + NOISE,
    "weights.pkl": pickle.dumps({"weights": NOISE}),
    "weights.safetensors": struct.pack("<Q", 60)
    + b'{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}    '
    + NOISE,
    "events.tfevents": b"".join(struct.pack("<QI", 40, 7) + NOISE[at : at + 40] for at in range(0, 90_000, 40)),
    "records.parquet": b"PAR1\x15\x04" + NOISE,
    "blocks.zst": b"\x28\xb5\x2f\xfd" + NOISE,
    "holes": bytes(300_000),
    "noise.gz": gzip.compress(NOISE),
    "raw.zlib": zlib.compress(NOISE),
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
        lambda line: "  0: " + line,
        lambda line: line.rstrip("\n") + "   \n",
        lambda line: line + "\n",
        lambda line: "warnings.py:12: UserWarning: 3.5\n" + line,
        lambda line: f'{{"log":"{line[:-1]}\\n","stream":"stdout"}}\n',
        lambda line: "^[[32m" + line.rstrip("\n") + "^[[0m\n",
    ],
    ids=["ray", "padded", "blanks", "empty lines", "warnings", "docker", "colours of cat -v"],
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


@pytest.mark.parametrize("encoding", ["utf-8", "gbk", "shift_jis", "koi8-r", "utf-16"])
def test_messages_in_other_languages_change_nothing(encoding: str, tmp_path: Path) -> None:
    words = {"gbk": "训练开始第一轮", "shift_jis": "学習を開始します", "koi8-r": "Начало обучения"}.get(
        encoding, "훈련 학습 тест 训练"
    )
    path = tmp_path / "run.log"
    text = "".join(f"{words} {n}\n" + megatron(n, 1000.0) for n in range(1, 200))
    path.write_bytes(text.encode(encoding))
    summary = summarize_log(read_log(path))
    assert (summary.framework, summary.times.median_s, summary.iterations) == ("megatron-lm", 1.0, 199)


def test_a_folder_of_very_many_files_is_searched_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in range(20):
        folder = tmp_path / f"part{part}"
        folder.mkdir()
        for number in range(500):
            (folder / f"shard-{number:05d}.bin").touch()
        (folder / "run.log").write_text(megatron(1, 1000.0))
    looked_at = Counter[str]()
    is_file = Path.is_file

    def count_file(path: Path) -> bool:
        looked_at["files"] += 1
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", count_file)
    logs = assert_ratio(lambda: find_logs([tmp_path]), lambda: list(os.walk(tmp_path)), 40)
    assert len(logs) == 20
    assert looked_at["files"] <= 20 * ROUNDS
