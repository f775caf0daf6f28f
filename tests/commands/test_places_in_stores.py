"""Commands take what lies in a store as they take what lies on disk, and name its URLs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import gettempdir

import fsspec
import pytest

from perfscope.commands.bubble.measurement import measure_bubble
from perfscope.commands.goodput import goodput
from perfscope.commands.logs import logs
from perfscope.commands.memory import memory
from perfscope.commands.postmortem import postmortem
from perfscope.errors import ExitCode, SourceError
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from tests.conftest import ROOT

FIXTURES = ROOT / "fixtures"
STORE = "memory://place"
PIPELINE = FIXTURES / "runs" / "h200_megatron_pp2"
LOGS = ("deepspeed-2020.log", "llama2c-fork.log", "llm-c.log")

Ask = Callable[[str, Format], Outcome]


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
    ("source", "ask"),
    [
        ("published_logs/llm-c.log", lambda place, form: logs([place], format=form)),
        ("goodput/killed", lambda place, form: goodput([place], format=form)),
        ("goodput/megatron-1.log", lambda place, form: goodput([place], format=form)),
        ("postmortem/ddp-crash-2", lambda place, form: postmortem(place, format=form)),
        ("memory/pure.pickle.gz", lambda place, form: memory([place], format=form)),
        ("pipeline", lambda place, form: measure_bubble([place], (None, None, None), None, form)),
    ],
    ids=["logs", "goodput of a run", "goodput of a log", "postmortem", "memory", "bubble"],
)
def test_an_answer_is_the_same_from_a_store(source: str, ask: Ask, store: fsspec.AbstractFileSystem) -> None:
    path = FIXTURES / source if source != "pipeline" else PIPELINE
    before = copies()
    for form in (Format.JSON, Format.CSV):  # tables of Markdown are as wide as the names
        stored, on_disk = ask(put(store, path), form), ask(str(path), form)
        assert stored.output() == on_disk.output().replace(str(path.parent), STORE)
        assert stored.notes == tuple(note.replace(str(path.parent), STORE) for note in on_disk.notes)
        assert stored.exit_code == on_disk.exit_code
    assert copies() == before


def test_a_folder_of_logs_in_a_store_is_its_logs(store: fsspec.AbstractFileSystem, tmp_path: Path) -> None:
    folder = tmp_path / "13B"
    (folder / "deeper").mkdir(parents=True)
    for name in LOGS:
        (folder / "deeper" / name).write_bytes((FIXTURES / "published_logs" / name).read_bytes())
    (folder / "weights.bin").write_bytes(b"0")
    url = put(store, folder)
    stored, on_disk = logs([url], format=Format.CSV), logs([str(folder)], format=Format.CSV)
    assert stored.output() == on_disk.output().replace(str(tmp_path), STORE)
    assert f"{STORE}/13B/deeper/{LOGS[0]}" in stored.output()


def test_the_history_of_a_run_in_a_store_is_named_by_its_url(store: fsspec.AbstractFileSystem, tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "memory").mkdir(parents=True)
    (run / "run.json").write_text("{}")
    whole = (FIXTURES / "memory" / "pure.memory.jsonl.gz").read_bytes()
    (run / "memory" / "vm_1.1.memory.jsonl.gz").write_bytes(whole[:-3000])
    stored, on_disk = memory([put(store, run)]), memory([str(run)])
    assert stored.exit_code == ExitCode.DAMAGED_INPUT
    assert stored.notes == tuple(note.replace(str(tmp_path), STORE) for note in on_disk.notes)
    assert stored.notes[0].startswith("warning: memory://place/run/memory/vm_1.1.memory.jsonl.gz: ")


@pytest.mark.parametrize(
    "ask",
    [
        lambda place: logs([place]),
        lambda place: goodput([place]),
        postmortem,
        lambda place: memory([place]),
        lambda place: measure_bubble([place], (None, None, None), None, Format.MARKDOWN),
    ],
    ids=["logs", "goodput", "postmortem", "memory", "bubble"],
)
def test_what_is_not_there_is_named_by_its_url(ask: Callable[[str], Outcome], store: fsspec.AbstractFileSystem) -> None:
    with pytest.raises(SourceError, match=r"^memory://place/nothing \S+") as error:
        ask("memory://place/nothing")
    assert "perfscope-" not in str(error.value)


def test_a_file_that_cannot_be_read_as_what_it_should_be_is_named_by_its_url(
    store: fsspec.AbstractFileSystem,
) -> None:
    store.pipe("/place/memory.pickle", b"not a pickle")
    with pytest.raises(SourceError, match=r"^memory://place/memory.pickle "):
        memory([f"{STORE}/memory.pickle"])
    store.pipe("/place/folder/notes.bin", b"0")
    with pytest.raises(SourceError, match=r"^memory://place/folder holds no dump"):
        postmortem(f"{STORE}/folder")


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
    outcome = logs([f"{STORE}/logs"])
    assert outcome.exit_code == ExitCode.DAMAGED_INPUT
    assert outcome.notes[0] == f"warning: {STORE}/logs/{LOGS[0]} cannot be read: it does not exist"
    assert f"{STORE}/logs/{LOGS[1]}" in outcome.output()


def test_a_disk_that_cannot_hold_the_copies_is_named(
    store: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = put(store, FIXTURES / "published_logs" / LOGS[0])

    def is_full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "open", is_full)
    with pytest.raises(SourceError, match=rf"^{url} cannot be copied to \S+: No space left") as error:
        logs([url])
    assert error.value.hint == "TMPDIR names a folder on another disk"
