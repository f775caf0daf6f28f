"""Stores of other makers go the same way, what opens them is named, and no key leads out of a run's folder."""

from __future__ import annotations

import errno
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import fsspec
import pytest

from perfscope.engine.run import Plan, analyze
from perfscope.errors import SourceError, UsageError
from perfscope.sources.runs.stored import read_run_at
from perfscope.sources.stores.reading import copy_stored, list_below
from perfscope.wire.traces import partials_path
from tests.engine.storing import copy_with_partials, without_traces
from tests.sources.stores.conftest import RUN

TRACES = sorted(path.name for path in (RUN / "traces").iterdir())


@pytest.mark.parametrize(
    ("location", "extra"),
    [
        ("gs://bucket/run", "gcs"),
        ("abfs://container@account.dfs.core.windows.net/run", "abfs"),
    ],
)
def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, location: str, extra: str) -> None:
    for package in ("gcsfs", "adlfs"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=f"^{location} cannot be opened: ") as error:
        analyze([location])
    assert error.value.hint == f"pip install 'perfscope-toolkit[{extra}]'"


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> fsspec.AbstractFileSystem:
    """A store in this process, with a run."""
    store = fsspec.filesystem("memory")
    monkeypatch.setattr(type(store), "store", {})
    monkeypatch.setattr(type(store), "pseudo_dirs", [""])
    put(store, RUN)
    return store


def put(store: fsspec.AbstractFileSystem, run: Path) -> None:
    for path in run.rglob("*"):
        if path.is_file():
            store.pipe(f"/bucket/run/{path.relative_to(run)}", path.read_bytes())


class Half(io.BytesIO):
    """Half of a file, given as all of it."""

    def __init__(self, file: BinaryIO) -> None:
        content = file.read()
        super().__init__(content[: len(content) // 2])
        self.size = len(content)


LOST, THROTTLED = FileNotFoundError("the key"), OSError(errno.EBUSY, "SlowDown")


def fail_at(patch: pytest.MonkeyPatch, store: fsspec.AbstractFileSystem, name: str, fault: OSError | None) -> None:
    """Let a store raise an error where a file is opened, or give half of it."""
    original = type(store)._open

    def opened(self: fsspec.AbstractFileSystem, path: str, *words: Any, **options: Any) -> BinaryIO:
        file: BinaryIO = original(self, path, *words, **options)
        if not path.endswith(name):
            return file
        if fault is not None:
            raise fault
        return cast("BinaryIO", Half(file))

    patch.setattr(type(store), "_open", opened)


def ask() -> tuple[Sequence[str], list[int]]:
    """What is damaged, and the ranks whose traces are read, of the run in the store."""
    analysis = analyze(["memory://bucket/run"], Plan(only=frozenset(("steps", "breakdown"))))
    data: Any = analysis.results["breakdown"].data()
    return analysis.damage, [entry["rank"] for entry in data["ranks"]]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [(LOST, "it does not exist"), (THROTTLED, "the store refused it each time that it was asked"), (None, "")],
    ids=["lost", "throttled", "half"],
)
def test_what_a_store_does_not_give_is_named(
    memory: fsspec.AbstractFileSystem, fault: OSError | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, ranks in ((f"traces/{TRACES[1]}", [0, 2, 3]), ("ranks/00002/steps.jsonl", [0, 1, 2, 3])):
        with monkeypatch.context() as patch:
            fail_at(patch, memory, name, fault)
            damage, read = ask()
        assert damage[0].startswith(f"memory://bucket/run/{name}")
        assert reason in damage[0]
        assert read == ranks or fault is None
    assert ask() == ((), [0, 1, 2, 3])


@pytest.mark.parametrize(("fault", "reason"), [(LOST, "cannot be read: it does not exist"), (None, "is not whole")])
def test_partials_that_a_store_loses_are_named_with_the_reason(
    memory: fsspec.AbstractFileSystem, fault: OSError | None, reason: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    type(memory).store.clear()
    put(memory, without_traces(copy_with_partials(RUN, tmp_path)))
    fail_at(monkeypatch, memory, partials := partials_path(TRACES[2]), fault)
    damage, read = ask()
    assert f"stayed on its host, and {partials} {reason}" in damage[0]
    assert (damage[1].startswith("1 of 4 ranks have no trace"), read) == (True, [0, 1, 3])


def test_a_key_that_leads_out_of_the_folder_is_left_out(memory: fsspec.AbstractFileSystem) -> None:
    whole = sorted(list_below("memory://bucket/run"))
    (content,) = [value for key, value in type(memory).store.items() if key.endswith("run.json")]
    for key in ("/bucket/run/ranks/../../evil.json", "/bucket/run/ranks//../evil.json", "/bucket/run/..\\evil.json"):
        type(memory).store[key] = content
    assert sorted(list_below("memory://bucket/run")) == whole
    assert len(read_run_at("memory://bucket/run").ranks) == 4


def test_a_disk_that_cannot_hold_the_records_is_named(
    memory: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_full(path: Path, mode: str) -> BinaryIO:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "open", is_full)
    with pytest.raises(SourceError, match=r"memory://bucket/run cannot be copied to \S+: No space left") as error:
        read_run_at("memory://bucket/run")
    assert error.value.hint == "TMPDIR names a folder on another disk"


@pytest.mark.parametrize("name", ["ranks/00002/a[0].jsonl", "hosts/a*.json", "["])
def test_a_name_that_looks_like_a_pattern_is_a_name(
    memory: fsspec.AbstractFileSystem, name: str, tmp_path: Path
) -> None:
    memory.pipe_file(f"/bucket/run/{name}", b"content")
    assert name in list_below("memory://bucket/run")
    assert copy_stored({f"memory://bucket/run/{name}": tmp_path / "copy"}) == []
    assert (tmp_path / "copy").read_bytes() == b"content"
    assert len(read_run_at("memory://bucket/run").ranks) == 4
