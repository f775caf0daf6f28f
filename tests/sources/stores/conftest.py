"""The S3 server of all tests of this folder, and a bucket with a run and traces in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.sources.stores.server import ACCESS_KEY, SECRET_KEY, s3_server

RUN = ROOT / "fixtures" / "runs" / "h200_zero1"


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server whose bucket ``runs`` holds a run."""
    import s3fs

    folder = tmp_path_factory.mktemp("s3") / "server"
    with s3_server(folder) as address:
        store = s3fs.S3FileSystem(key=ACCESS_KEY, secret=SECRET_KEY, endpoint_url=address, skip_instance_cache=True)
        store.mkdir("runs")
        paths = [path for path in RUN.rglob("*") if path.is_file()]
        store.pipe({f"runs/zero1/{path.relative_to(RUN)}": path.read_bytes() for path in paths})
        yield address
        store.rm("runs", recursive=True)


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, str]:
    """The variables of the standard chain of credentials."""
    return {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, **without_keys(tmp_path)}


def without_keys(tmp_path: Path) -> dict[str, str]:
    """Variables that leave no credentials to be found."""
    return {"HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true", "AWS_DEFAULT_REGION": "us-east-1"}
