"""Runs in a store that speaks the interface of Azure's blobs give what they give on disk."""

from __future__ import annotations

import shutil
import subprocess
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import fsspec
import pytest

from tests.conftest import ROOT, perfscope
from tests.sources.stores.conftest import RUN
from tests.sources.stores.server import free_ports, wait_for

adlfs = pytest.importorskip("adlfs", reason="adlfs opens abfs://")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("stores")]

#: `make test` installs it there.
SERVER = ROOT / ".venv" / "azurite" / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
ACCOUNT = "devstoreaccount1"
#: Azurite's own, which its documentation names: it protects nothing.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
CONNECTION = "AZURE_STORAGE_CONNECTION_STRING"


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


@pytest.mark.parametrize("name", ["runs/nothing", "nothing/run"])
def test_what_is_not_there_is_named(variables: dict[str, str], tmp_path: Path, name: str) -> None:
    ended = perfscope("analyze", f"abfs://{name}", cwd=tmp_path, **variables)
    assert (ended.code, ended.stderr) == (1, f"perfscope: abfs://{name} does not exist\n")
