"""GPUs that several ranks share, each with a part of the multiprocessors: NVIDIA's multi-process service (MPS)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: The percentage of a GPU that a rank has which shares it with nobody.
WHOLE = 100
_CONTROL = "nvidia-cuda-mps-control"
_LONGEST_START_S = 10
_LONGEST_END_S = 5


def equal_shares(ranks: int, gpus: int) -> tuple[int, ...]:
    """The percentage of a GPU that each rank has, where ranks spread evenly over the GPUs."""
    on_a_gpu = -(-ranks // max(1, gpus))
    return (WHOLE // on_a_gpu,) * ranks


@contextmanager
def sharing() -> Iterator[dict[str, str]]:
    """Run the multi-process service; gives the environment by which ranks find it, empty on a machine without it."""
    if shutil.which(_CONTROL) is None:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="mps-", ignore_cleanup_errors=True) as folder:
        places = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
        for path in places.values():
            Path(path).mkdir()
        environment = {**os.environ, **places}
        daemon = subprocess.Popen(
            [_CONTROL, "-f"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            _wait_for(Path(folder, "pipe", "control"))
            yield places
        finally:
            _end(daemon, environment)


def _wait_for(control: Path) -> None:
    end = time.monotonic() + _LONGEST_START_S
    while not control.exists():
        if time.monotonic() > end:
            raise SystemExit(f"{_CONTROL} does not answer: {control} is missing")
        time.sleep(0.05)


def _end(daemon: subprocess.Popen[bytes], environment: dict[str, str]) -> None:
    with suppress(subprocess.TimeoutExpired):
        subprocess.run(
            [_CONTROL], input=b"quit -t 1\n", env=environment, capture_output=True, timeout=_LONGEST_END_S, check=False
        )
        daemon.wait(_LONGEST_END_S)
    with suppress(ProcessLookupError):
        os.killpg(daemon.pid, signal.SIGKILL)
    daemon.wait()
