"""Runs in a store that speaks the interface of Azure's blobs give what they give on disk."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fsspec
import pytest

from perfscope.sources.traces.files import find_traces
from tests.conftest import ROOT, perfscope
from tests.engine.storing import copy_with_partials
from tests.sources.stores.conftest import RUN
from tests.sources.stores.faults import Faults, faulty
from tests.sources.stores.server import free_ports, wait_for
from tests.sources.stores.test_s3 import PARTIALS, TRACES

adlfs = pytest.importorskip("adlfs", reason="adlfs opens abfs://")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("stores")]

#: `make test` installs it there.
SERVER = ROOT / ".venv" / "azurite" / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
ACCOUNT = "devstoreaccount1"
#: Azurite's own, which its documentation names: it protects nothing.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
CONNECTION = "AZURE_STORAGE_CONNECTION_STRING"
_ENDPOINT = re.compile(r"BlobEndpoint=http://[^/]+/")


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What leads adlfs to a server with an empty container ``runs``."""
    node = shutil.which("node")
    if node is None or not SERVER.exists():
        pytest.skip("Azurite is not installed: `make azurite`")
    (port,) = free_ports(1)
    folder = tmp_path_factory.mktemp("azurite")
    words = [node, str(SERVER), f"--blobPort={port}", "--inMemoryPersistence", "--disableTelemetry", "--silent"]
    with (folder / "log").open("wb") as log:
        # The library may speak a younger version of the interface than the server knows by name.
        server = subprocess.Popen([*words, "--skipApiVersionCheck"], cwd=folder, stdout=log, stderr=log)
    try:
        try:
            wait_for(port, server, folder / "log")
        except AssertionError as error:  # npm gives Azurite's own dependencies in their newest versions
            pytest.skip(f"Azurite does not start: {error}")
        found = {
            CONNECTION: f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};"
            f"BlobEndpoint=http://127.0.0.1:{port}/{ACCOUNT};"
        }
        with warnings.catch_warnings(action="ignore"):  # of a container that is not there yet
            store(found).mkdir("runs")
        yield found
    finally:
        server.kill()
        server.wait()


def store(variables: Mapping[str, str]) -> fsspec.AbstractFileSystem:
    """The store by its class: fsspec, asked for it, would have adlfs from then on, as a test must not have it."""
    opened: fsspec.AbstractFileSystem = adlfs.AzureBlobFileSystem(connection_string=variables[CONNECTION])
    return opened


def put(variables: Mapping[str, str], folder: Path, name: str) -> str:
    """Put a folder's files into the container; returns its URL."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    store(variables).pipe({f"runs/{name}/{path.relative_to(folder)}": path.read_bytes() for path in paths})
    return f"abfs://runs/{name}"


def test_a_run_gives_the_bytes_that_it_gives_on_disk(variables: dict[str, str], tmp_path: Path) -> None:
    location = put(variables, RUN, "zero1")
    words = ("analyze", "--format", "json", "--workers", "2")
    stored = perfscope(*words, location, cwd=tmp_path, **variables)
    on_disk = perfscope("analyze", "--format", "json", str(RUN), cwd=tmp_path)
    assert stored.code == on_disk.code, stored.stderr
    assert stored.stdout == on_disk.stdout.replace(str(RUN), location)


def test_a_url_with_its_account_names_the_traces_with_it(variables: dict[str, str], tmp_path: Path) -> None:
    put(variables, RUN, "zero1")
    location = f"abfs://runs@{ACCOUNT}.dfs.core.windows.net/zero1"
    words = ("analyze", "--format", "json", "--only", "breakdown")
    stored = perfscope(*words, location, cwd=tmp_path, **variables)
    on_disk = perfscope(*words, str(RUN), cwd=tmp_path)
    assert stored.stdout == on_disk.stdout.replace(str(RUN), location), stored.stderr


def test_partials_answer_for_a_trace_that_is_gone(variables: dict[str, str], tmp_path: Path) -> None:
    run = copy_with_partials(RUN, tmp_path)
    location = put(variables, run, "partials")
    gone = Path(find_traces([str(run / "traces")])[0])
    store(variables).rm(f"runs/partials/traces/{gone.name}")
    words = ("analyze", "--format", "json", "--only", "breakdown")
    stored = perfscope(*words, location, cwd=tmp_path, **variables)
    on_disk = perfscope(*words, str(run), cwd=tmp_path)
    assert stored.stdout == on_disk.stdout.replace(str(run), location), stored.stderr


def through(variables: Mapping[str, str], address: str) -> dict[str, str]:
    """What leads adlfs to the server by way of a proxy."""
    return {CONNECTION: _ENDPOINT.sub(f"BlobEndpoint={address}/", variables[CONNECTION])}


def origin(variables: Mapping[str, str]) -> str:
    match = _ENDPOINT.search(variables[CONNECTION])
    assert match is not None
    return match[0].removeprefix("BlobEndpoint=").rstrip("/")


@pytest.fixture(scope="module")
def measured(variables: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run in the store whose traces have partials."""
    return put(variables, copy_with_partials(RUN, tmp_path_factory.mktemp("measured")), "measured")


ONLY = ("--format", "json", "--only", "steps,breakdown,collectives")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, measured: str) -> str:
    """What the run says on disk."""
    folder = tmp_path_factory.mktemp("whole")
    return perfscope("analyze", *ONLY, RUN, cwd=folder).stdout.replace(str(RUN), measured)


@pytest.mark.parametrize(
    "faults",
    [{"unlisted": TRACES[1]}, {"unlisted": PARTIALS}, {"cut": {PARTIALS: 1}}, {"throttled": {PARTIALS: 1}}],
    ids=str,
)
def test_a_store_that_fails_for_a_while_changes_no_answer(
    variables: dict[str, str], measured: str, whole: str, tmp_path: Path, faults: dict[str, Any]
) -> None:
    store = Faults(**faults)
    with faulty(origin(variables), store) as address:
        answer = perfscope("analyze", *ONLY, measured, cwd=tmp_path, **through(variables, address))
    assert (answer.code, answer.stdout) == (0, whole), answer.stderr
    assert not any({**store.cut, **store.throttled}.values())
    assert store.pages


@pytest.mark.parametrize(
    ("faults", "line"),
    [
        ({"lost": TRACES[2]}, f"traces/{TRACES[2]} cannot be read: it does not exist"),
        ({"lost": "ranks/00002/steps.jsonl"}, "ranks/00002/steps.jsonl cannot be read: it does not exist"),
    ],
    ids=str,
)
def test_what_the_store_loses_is_named_and_the_others_are_answered_for(
    variables: dict[str, str], measured: str, tmp_path: Path, faults: dict[str, Any], line: str
) -> None:
    with faulty(origin(variables), Faults(**faults)) as address:
        answer = perfscope("analyze", *ONLY, measured, cwd=tmp_path, **through(variables, address))
    assert answer.code == 4
    assert f"{measured}/{line}" in answer.stderr
    assert "Traceback" not in answer.stderr
    assert KEY not in answer.stderr


@pytest.mark.parametrize("faults", [{"lost": PARTIALS}, {"shortened": {PARTIALS: 1_000_000}}], ids=str)
def test_the_trace_is_read_where_its_partials_are_lost(
    variables: dict[str, str], measured: str, whole: str, tmp_path: Path, faults: dict[str, Any]
) -> None:
    with faulty(origin(variables), Faults(**faults)) as address:
        answer = perfscope("analyze", *ONLY, measured, cwd=tmp_path, **through(variables, address))
    assert (answer.code, answer.stdout) == (0, whole), answer.stderr
    assert "lost" in faults or f"{PARTIALS} " in answer.stderr


def test_a_run_comes_together_without_its_traces(variables: dict[str, str], measured: str, tmp_path: Path) -> None:
    faults = Faults(lost="ranks/00001/steps.jsonl")
    with faulty(origin(variables), faults) as address:
        words = ("collect", measured, "-o", "run", "--partials")
        answer = perfscope(*words, cwd=tmp_path, **through(variables, address))
    assert answer.code == 4
    assert f"{measured}/ranks/00001/steps.jsonl cannot be read: it does not exist" in answer.stderr
    answer = perfscope("collect", measured, "-o", "run", "--traces", "1", cwd=tmp_path, **variables)
    assert [path.name for path in (tmp_path / "run" / "traces").glob("*.gz")] == [TRACES[1]]
    assert (tmp_path / "run" / "ranks" / "00001" / "steps.jsonl").exists()


@pytest.mark.parametrize("name", ["runs/nothing", "nothing/run"])
def test_what_is_not_there_is_named(variables: dict[str, str], tmp_path: Path, name: str) -> None:
    ended = perfscope("analyze", f"abfs://{name}", cwd=tmp_path, **variables)
    assert (ended.code, ended.stderr) == (1, f"perfscope: abfs://{name} does not exist\n")


def test_credentials_that_are_refused_are_named_and_not_shown(variables: dict[str, str], tmp_path: Path) -> None:
    wrong = KEY.replace("Eby8", "wXyZ")
    ended = perfscope(
        "analyze", "abfs://runs/x", cwd=tmp_path, **{CONNECTION: variables[CONNECTION].replace(KEY, wrong)}
    )
    (line,) = ended.stderr.splitlines()
    assert line.startswith("perfscope: abfs://runs/x cannot be read: ")
    assert "authenticate" in line
    assert wrong not in ended.stderr


def test_an_account_that_nobody_named_is_one_plain_sentence(tmp_path: Path) -> None:
    nothing = {name: "" for name in os.environ if name.startswith("AZURE_")}
    ended = perfscope("analyze", "abfs://runs/zero1", cwd=tmp_path, **nothing)
    (line,) = ended.stderr.splitlines()
    assert line.startswith("perfscope: abfs://runs/zero1 cannot be opened: ")
    assert "account_name" in line
