"""Commands take what lies in a store as they take what lies on disk, and name its URLs."""

from __future__ import annotations

from pathlib import Path
from tempfile import gettempdir

import fsspec
import pytest

from perfscope.errors import ExitCode
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


def copies() -> set[Path]:
    return set(Path(gettempdir()).glob("perfscope-*"))


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
def test_an_answer_is_the_same_from_a_store(source: str, command: str, store: fsspec.AbstractFileSystem) -> None:
    path = FIXTURES / source
    before = copies()
    for form in ("json", "csv"):  # tables of Markdown are as wide as the names
        words = (*COMMANDS[command], "-f", form)
        stored, on_disk = ask(*words, put(store, path)), ask(*words, path)
        assert stored.stdout == on_disk.stdout.replace(str(path.parent), STORE)
        assert stored.stderr == on_disk.stderr.replace(str(path.parent), STORE)
        assert stored.code == on_disk.code
    assert copies() == before


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_not_there_is_named_by_its_url(command: str) -> None:
    ended = ask(*COMMANDS[command], "memory://place/nothing")
    assert ended.code == 1
    assert ended.stderr.startswith("perfscope: memory://place/nothing ")
    assert "perfscope-" not in ended.stderr


def test_a_log_that_is_lost_is_named_and_the_others_are_answered_for(
    store: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in LOGS:
        store.pipe(f"/place/logs/{name}", (FIXTURES / "published_logs" / name).read_bytes())
    opened = type(store)._open

    def lose(self: fsspec.AbstractFileSystem, path: str, *words: object, **options: object) -> object:
        if path.endswith(LOGS[0]):
            raise FileNotFoundError(path)
        return opened(self, path, *words, **options)

    monkeypatch.setattr(type(store), "_open", lose)
    ended = ask("logs", f"{STORE}/logs")
    assert ended.code == ExitCode.DAMAGED_INPUT
    assert ended.stderr.startswith(f"perfscope: warning: {STORE}/logs/{LOGS[0]} cannot be read: it does not exist\n")
    assert f"{STORE}/logs/{LOGS[1]}" in ended.stdout
