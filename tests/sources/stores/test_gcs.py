"""Runs in a store that speaks the interface of Google Cloud Storage give what they give on disk."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest

from tests.conftest import perfscope
from tests.sources.stores.conftest import RUN
from tests.sources.stores.server import free_ports, wait_for

pytest.importorskip("gcsfs", reason="gcsfs opens gs://")
pytest.importorskip("gcp_storage_emulator", reason="a package with the server")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("stores")]


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What leads gcsfs to a server with an empty bucket, which needs no credentials and speaks no gRPC."""
    (port,) = free_ports(1)
    log = tmp_path_factory.mktemp("gcs") / "log"
    words = ["-m", "gcp_storage_emulator", "start", "--host=127.0.0.1", f"--port={port}", "--in-memory"]
    with log.open("wb") as file:
        server = subprocess.Popen([sys.executable, *words, "--default-bucket=runs"], stdout=file, stderr=file)
    try:
        wait_for(port, server, log)
        yield {
            "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}",
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        }
    finally:
        server.kill()
        server.wait()


def put(server: Mapping[str, str], folder: Path, name: str) -> str:
    """Put a folder's files into the bucket, as the store's own interface has it; returns its URL."""
    address = server["STORAGE_EMULATOR_HOST"]
    for path in folder.rglob("*"):
        if path.is_file():
            query = urlencode({"uploadType": "media", "name": f"{name}/{path.relative_to(folder)}"})
            urlopen(Request(f"{address}/upload/storage/v1/b/runs/o?{query}", path.read_bytes())).close()
    return f"gs://runs/{name}"


def test_a_run_gives_the_bytes_that_it_gives_on_disk(variables: dict[str, str], tmp_path: Path) -> None:
    location = put(variables, RUN, "zero1")
    stored = perfscope("analyze", "--format", "json", location, cwd=tmp_path, **variables)
    on_disk = perfscope("analyze", "--format", "json", str(RUN), cwd=tmp_path)
    assert stored.code == on_disk.code, stored.stderr
    assert stored.stdout == on_disk.stdout.replace(str(RUN), location)


def test_what_is_not_there_is_named(variables: dict[str, str], tmp_path: Path) -> None:
    ended = perfscope("analyze", "gs://runs/nothing", cwd=tmp_path, **variables)
    assert ended.code != 0
    assert "gs://runs/nothing does not exist" in ended.stderr
