"""One input, one answer: `logs`, `tflops --log`, `plan --model` and `scaling` agree on every log.

And each of them gives the same answer where the log is compressed, in UTF-16, with lines that end with CRLF, or with
what launchers and mails write before every line.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfscope.cli import main
from tests.conftest import ROOT

FIXTURES = ROOT / "fixtures"
LOGS = sorted(
    path
    for folder in ("logs", "flops", "published_logs", "foreign_logs")
    for path in (FIXTURES / folder).iterdir()
    if path.suffix in (".log", ".out", ".txt")
)[::8]


def _label(label: bytes) -> Callable[[bytes], bytes]:
    return lambda text: b"".join(label + line for line in text.splitlines(keepends=True))


def _compressed_utf16(text: bytes) -> bytes:
    return gzip.compress(codecs.BOM_UTF16_BE + text.decode("utf-8", "replace").encode("utf-16-be"))


def _of_windows(text: bytes) -> bytes:
    return codecs.BOM_UTF8 + text.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")


VARIANTS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "UTF-16, compressed": ("run.log.gz", _compressed_utf16),
    "CRLF with a byte order mark": ("run.log", _of_windows),
    "torchrun": ("run.log", _label(b"[default7]:")),
    "kubectl": ("run.log", _label(b"[pod/train-worker-0/pytorch] ")),
    "colours": ("run.log", _label(b"\x1b[36m\x1b[0m")),
}


def answer(*arguments: object) -> dict[str, Any]:
    """The JSON of a command, or its code and its error."""
    before, sys.argv = sys.argv, ["perfscope", *map(str, arguments), "--format", "json"]
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
        code: object = 0
    except SystemExit as end:
        code = end.code
    finally:
        sys.argv = before
    if not out.getvalue():
        return {"code": code, "error": err.getvalue()}
    document: dict[str, Any] = json.loads(out.getvalue())
    return document


def read_all(folder: Path, name: str, content: bytes) -> dict[str, Any]:
    """The answers of every command for a log on one node of eight GPUs, without the file's name."""
    path = folder / "1n8g" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    answers = {
        "logs": answer("logs", path),
        "tflops": answer("tflops", "--log", path),
        "plan": answer("plan", "--model", path, "--gpus", 8),
        "scaling": answer("scaling", path.parent),
    }
    text = json.dumps(answers).replace(str(folder), "FOLDER").replace(".log.gz", ".log")
    without_place: dict[str, Any] = json.loads(text)
    return without_place


def check_agreement(answers: dict[str, Any]) -> None:
    """Compare each figure that two commands share."""
    (summary,) = answers["logs"].get("logs") or [{}]
    for run in answers["scaling"].get("runs", []):
        assert run["samples_per_s"] == summary["samples_per_s"]
    tflops, plan = answers["tflops"], answers["plan"]
    for document in (tflops, plan):
        if "model" in document and summary.get("parameters_source") != "given":
            assert document["model"]["parameters"] == summary["parameters"]
    if "tflops_per_gpu" in tflops and summary["tflops_per_gpu"] is not None:
        assert tflops["tflops_per_gpu"] == pytest.approx(summary["tflops_per_gpu"], rel=1e-6)


@pytest.mark.parametrize("log", LOGS, ids=lambda log: f"{log.parent.name}/{log.stem}")
def test_every_command_gives_one_answer_whatever_the_log_is_written_in(log: Path, tmp_path: Path) -> None:
    content = log.read_bytes()
    plain = read_all(tmp_path / "plain", "run.log", content)
    check_agreement(plain)
    for number, (variant, (name, write)) in enumerate(VARIANTS.items()):
        assert read_all(tmp_path / str(number), name, write(content)) == plain, variant


def test_plan_sizes_a_checkpoint_as_checkpoint_does() -> None:
    size = answer("plan", "--model", "7B", "--gpus", 8, "--zero", 1)["checkpoint_bytes"]
    assert str(size) in json.dumps(answer("checkpoint", "--size", "7B", "--gpus", 8))
