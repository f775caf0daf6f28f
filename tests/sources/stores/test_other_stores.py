"""Stores of other makers go the same way, what opens them is named, and no key leads out of a run's folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import BinaryIO

import fsspec
import pytest

from perfscope.engine.run import analyze
from perfscope.errors import SourceError, UsageError
from perfscope.sources.runs.stored import read_run_at
from perfscope.sources.stores.reading import copy_stored, list_below
from tests.sources.stores.conftest import RUN


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
    for path in RUN.rglob("*"):
        if path.is_file() and path.parent.name != "traces":
            store.pipe(f"/bucket/run/{path.relative_to(RUN)}", path.read_bytes())
    return store


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
