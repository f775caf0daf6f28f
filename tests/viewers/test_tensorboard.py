"""The server of torch-tb-profiler reads the traces and answers each of its views."""

from __future__ import annotations

import gzip
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from tests.viewers.conftest import H200

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

_LONGEST_S = 240


class Server:
    """TensorBoard with the plugin, once it has loaded both runs."""

    def __init__(self, logdir: Path, port: int) -> None:
        self._at = f"http://127.0.0.1:{port}/data/plugin/pytorch_profiler"
        words = ["--logdir", str(logdir), "--port", str(port), "--host", "127.0.0.1", "--load_fast", "false"]
        self.log = logdir.with_name("tensorboard.log")
        with self.log.open("wb") as log:
            self._process = subprocess.Popen([sys.executable, "-m", "tensorboard.main", *words], stdout=log, stderr=log)

    def wait_for_runs(self, count: int) -> list[str]:
        """The runs, once all are loaded."""
        deadline = time.monotonic() + _LONGEST_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                answer = self.ask("runs")
            except (URLError, ConnectionError):
                time.sleep(0.3)
                continue
            if len(answer["runs"]) == count and not answer["loading"]:
                return list(answer["runs"])
            time.sleep(0.3)
        raise AssertionError(self.log.read_text()[-2000:])

    def ask(self, route: str, **query: str) -> Any:
        """The JSON of one of the plugin's routes."""
        with urlopen(f"{self._at}/{route}?{urlencode(query)}", timeout=60) as answer:
            content = answer.read()
            return json.loads(gzip.decompress(content) if answer.headers["Content-Encoding"] == "gzip" else content)

    def end(self) -> None:
        """Stop it."""
        self._process.terminate()
        self._process.wait(timeout=20)


@pytest.fixture(scope="module")
def server(cpu_traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    logdir = tmp_path_factory.mktemp("tensorboard") / "logs"
    shutil.copytree(cpu_traces, logdir / "cpu")
    (logdir / "h200").mkdir()
    for trace in sorted(H200.iterdir())[:2]:
        shutil.copy(trace, logdir / "h200")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started = Server(logdir, port)
    try:
        assert sorted(started.wait_for_runs(2)) == ["cpu", "h200"]
        yield started
    finally:
        started.end()


def test_views_workers_and_spans_are_those_of_the_run(server: Server) -> None:
    assert {"Overview", "Operator", "Kernel", "Trace", "Distributed"} <= set(server.ask("views", run="h200"))
    assert {"Overview", "Operator", "Trace", "Distributed", "Memory"} <= set(server.ask("views", run="cpu"))
    assert server.ask("workers", run="h200", view="Overview") == ["vm_968", "vm_969"]  # HOST_PID of the files' names
    assert len(server.ask("workers", run="cpu", view="Overview")) == 2
    assert server.ask("spans", run="h200", worker="vm_968") == ["1"]


def test_the_distributed_view_has_every_rank(server: Server) -> None:
    (worker,) = server.ask("workers", run="h200", view="Distributed")
    where = {"run": "h200", "worker": worker, "span": "1"}
    info = server.ask("distributed/gpuinfo", **where)["data"]["vm"]
    assert sorted(info) == ["Process 968", "Process 969"]
    for route in ("overlap", "waittime"):
        assert set(server.ask(f"distributed/{route}", **where)["data"]["5"]) == {"vm_968", "vm_969"}
    operations = server.ask("distributed/commops", **where)["data"]["vm_968"]["rows"]
    assert operations
    (worker,) = server.ask("workers", run="cpu", view="Distributed")
    assert len(server.ask("distributed/commops", run="cpu", worker=worker, span="1")["data"]) == 2
