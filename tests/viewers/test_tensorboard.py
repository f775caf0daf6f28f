"""The server of torch-tb-profiler reads the traces: every rank of a run is a worker of one distributed view."""

from __future__ import annotations

import gzip
import json
import shutil
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from tests.viewers.conftest import H200


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_the_distributed_view_has_every_rank(tmp_path: Path) -> None:
    shutil.copytree(H200, tmp_path / "logs" / "h200")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def ask(route: str, **query: str) -> Any:
        at = f"http://127.0.0.1:{port}/data/plugin/pytorch_profiler/{route}?{urlencode(query)}"
        with urlopen(at, timeout=60) as answer:
            content = answer.read()
            return json.loads(gzip.decompress(content) if answer.headers["Content-Encoding"] == "gzip" else content)

    words = ["--logdir", str(tmp_path / "logs"), "--port", str(port), "--host", "127.0.0.1", "--load_fast", "false"]
    with subprocess.Popen([sys.executable, "-m", "tensorboard.main", *words], stderr=subprocess.DEVNULL) as server:
        runs: dict[str, Any] = {}
        while server.poll() is None and (not runs.get("runs") or runs["loading"]):
            time.sleep(0.3)
            with suppress(URLError, ConnectionError):
                runs = ask("runs")
        assert {"Overview", "Operator", "Kernel", "Trace", "Distributed"} <= set(ask("views", run="h200"))
        workers = ["vm_968", "vm_969", "vm_970", "vm_971"]  # HOST_PID of the files' names
        assert ask("workers", run="h200", view="Overview") == workers
        (worker,) = ask("workers", run="h200", view="Distributed")
        where = {"run": "h200", "worker": worker, "span": "1"}
        for route in ("overlap", "waittime"):
            assert sorted(ask(f"distributed/{route}", **where)["data"]["5"]) == workers
        assert ask("distributed/commops", **where)["data"]["vm_968"]["rows"]
        server.terminate()
