"""Commands take what lies in a store as they take what lies on disk, and name its URLs."""

from __future__ import annotations

import tempfile
from pathlib import Path

import fsspec
import pytest

from tests.analyzers.tflops.making import ask
from tests.conftest import ROOT

FIXTURES = ROOT / "fixtures"
STORE = "memory://place"
LOGS = ("deepspeed-2020.log", "llama2c-fork.log", "llm-c.log")

COMMANDS = {
    "logs": ("logs",),
    "goodput": ("analyze", "--only", "goodput"),
    "postmortem": ("postmortem",),
    "memory": ("analyze", "--only", "memory"),
    "bubble": ("analyze", "--only", "pipeline_bubble", "--workers", "1"),
}


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> fsspec.AbstractFileSystem:
    """A store in this process."""
    filesystem = fsspec.filesystem("memory")
    monkeypatch.setattr(type(filesystem), "store", {})
    monkeypatch.setattr(type(filesystem), "pseudo_dirs", [""])
    return filesystem


def put(store: fsspec.AbstractFileSystem, source: Path) -> str:
    """Put a file or a folder into the store; returns its URL."""
    files = [path for path in source.rglob("*") if path.is_file()] if source.is_dir() else [source]
    for path in files:
        store.pipe(f"/place/{path.relative_to(source.parent)}", path.read_bytes())
    return f"{STORE}/{source.name}"


@pytest.mark.parametrize(
    ("source", "command"),
    [
        ("published_logs/llm-c.log", "logs"),
        ("goodput/killed", "goodput"),
        ("postmortem/ddp-group-2", "postmortem"),
        ("memory/pure.pickle.gz", "memory"),
        ("runs/h200_megatron_pp2", "bubble"),
    ],
)
def test_an_answer_is_the_same_from_a_store(
    source: str, command: str, store: fsspec.AbstractFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = FIXTURES / source
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for form in ("json", "csv"):  # tables of Markdown are as wide as the names
        words = (*COMMANDS[command], "-f", form)
        stored, on_disk = ask(*words, put(store, path)), ask(*words, path)
        assert stored.stdout == on_disk.stdout.replace(str(path.parent), STORE)
        assert stored.stderr == on_disk.stderr.replace(str(path.parent), STORE)
        assert stored.code == on_disk.code
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_not_there_is_named_by_its_url(command: str) -> None:
    ended = ask(*COMMANDS[command], "memory://place/nothing")
    assert ended.code == 1
    assert ended.stderr.startswith("perfscope: memory://place/nothing ")
    assert "perfscope-" not in ended.stderr
