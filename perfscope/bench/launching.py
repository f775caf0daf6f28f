"""Starts the training of a row under ``perfscope profile``, and cleans up behind it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from perfscope.bench.settings import Machine, Settings, Variant
from perfscope.errors import PerfscopeError, UsageError
from perfscope.workloads.strategies import Processes

_SCRIPT = str(Path(__file__).parents[1] / "workloads" / "strategies" / "train.py")
#: After Ctrl-C a training has so long to end by itself.
_PATIENCE_S = 10


@dataclass(slots=True)
class TrainingPlace:
    """Where a training leaves its run, each rank's result, its checkpoint (removed once measured) and its output."""

    run_dir: Path
    result: Path
    checkpoint: Path
    log: Path

    @classmethod
    def below(cls, folder: Path, name: str) -> TrainingPlace:
        """The places of a training in the folder of a benchmark."""
        work = folder / "work" / name
        return cls(folder / "runs" / name, work / "result", work / "checkpoint", folder / "logs" / f"{name}.log")

    def clear(self) -> None:
        """Remove what an earlier attempt left."""
        for path in (self.run_dir, self.result.parent):
            shutil.rmtree(path, ignore_errors=True)
        self.result.parent.mkdir(parents=True)
        self.run_dir.parent.mkdir(parents=True, exist_ok=True)
        self.log.parent.mkdir(parents=True, exist_ok=True)


@dataclass(slots=True)
class Started:
    """A training that runs: its command, the port of its rendezvous, and its ranks once it is asked to end."""

    variant: Variant
    place: TrainingPlace
    process: subprocess.Popen[bytes]
    port: int
    is_late: bool = False
    ranks: list[int] = field(default_factory=list)

    def train(self, seconds: float) -> None:
        """Wait until every rank has written its result; where the time is over, end the training for the next one."""
        end = time.monotonic() + seconds
        while self.process.poll() is None:
            if len(list(self.place.result.glob("rank-*.json"))) >= self.variant.processes:
                return
            if time.monotonic() >= end:
                self.is_late = True
                self.stop()
            time.sleep(0.02)

    def finish(self, seconds: float) -> int | None:
        """Wait for the end of the command; its exit code, None where it did not end in time."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        else:
            return None if self.is_late else code
        finally:
            self.stop()

    def interrupt(self) -> None:
        """Ask it to end, as Ctrl-C does."""
        if self.process.poll() is None and not self.ranks:
            self.ranks = _list_descendants(self.process.pid)  # torchrun's have process groups of their own
            _send(os.killpg, self.process.pid, signal.SIGINT)

    def stop(self) -> None:
        """End what still runs of it, and remove what DeepSpeed leaves in the host's shared memory."""
        self.interrupt()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_PATIENCE_S)
        for process in self.ranks:
            _send(os.kill, process, signal.SIGKILL)
        if self.process.poll() is None:
            _send(os.killpg, self.process.pid, signal.SIGKILL)
            self.process.wait()
        for buffer in Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*_{self.port}_*"):
            buffer.unlink(missing_ok=True)


def start(variant: Variant, settings: Settings, place: TrainingPlace) -> Started:
    """Start a training."""
    place.clear()
    port = _find_free_port()
    words = profile_words(variant, settings, place, port)
    with place.log.open("wb") as log:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=_environment(settings, variant, port),
            start_new_session=True,
        )
    return Started(variant, place, process, port)


def profile_words(variant: Variant, settings: Settings, place: TrainingPlace, port: int) -> list[str]:
    """The whole command, from ``perfscope profile`` on."""
    window = str(settings.profiled_step)
    profile = ["profile", "-o", str(place.run_dir), "--steps", window, "--window", "operators", "--nvml-hz", "20"]
    return [
        *(sys.executable, "-m", "perfscope", *profile, "--"),
        *launch_words(variant, settings, port),
        *training_words(variant, settings),
        *("--result", str(place.result)),
        *("--checkpoint", str(place.checkpoint)),
    ]


def launch_words(variant: Variant, settings: Settings, port: int) -> list[str]:
    """The launcher of a variant's processes, up to the training script."""
    if variant.facts.processes is not Processes.ONE_A_DEVICE:
        return [sys.executable, _SCRIPT]
    if settings.launcher is not None:
        launcher = settings.launcher.format(nproc=variant.nproc, port=port)
        return [*shlex.split(launcher), _SCRIPT]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--master-port", str(port)]
    return [*torchrun, "--nproc-per-node", str(variant.nproc), _SCRIPT]


def training_words(variant: Variant, settings: Settings) -> list[str]:
    """The options of the training script."""
    devices = variant.nproc if variant.facts.processes is Processes.ALL_DEVICES else 1
    return [
        *("--strategy", variant.strategy, "--precision", variant.precision, "--devices", str(devices)),
        *model_words(settings),
        *("--batch", str(settings.batch), "--steps", str(settings.trained_steps)),
        *(f"--{change}" for change in variant.changes),
    ]


def model_words(settings: Settings) -> list[str]:
    """The options of the training script about model, data and device."""
    data = ["--data", settings.data] if settings.data else []
    return ["--model", settings.model, *data, "--device", settings.device]


def describe_machine(settings: Settings) -> Machine:
    """What the training script says of the model and of this machine; UsageError where the model cannot be used."""
    if find_spec("torch") is None:
        raise PerfscopeError("torch is not installed here", hint="pip install perfscope-toolkit[torch]")
    ended = subprocess.run(
        [sys.executable, _SCRIPT, "--describe", *model_words(settings)],
        capture_output=True,
        text=True,
        check=False,
        env=_environment(settings, None, 0),
    )
    if ended.returncode != 0:
        lines = [line for line in ended.stderr.splitlines() if line.strip()]
        places = [line.strip() for line in lines if line.lstrip().startswith("File ") and ".py" in line]
        where = f" ({places[-1]})" if settings.model.partition(":")[0].endswith(".py") and places else ""
        raise UsageError(f"{settings.model}: {lines[-1] if lines else 'it ended without a word'}{where}")
    return Machine(**json.loads(ended.stdout.splitlines()[-1]))


def _environment(settings: Settings, variant: Variant | None, port: int) -> dict[str, str]:
    """The environment of a training: the package that runs now, and on CPUs as many threads as its devices have."""
    package = str(Path(__file__).resolve().parents[2])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    threads = settings.threads * (variant.nproc // variant.processes if variant else 1)
    return {
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",  # ranks that share cores would spin in each other's way
        **os.environ,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "MASTER_ADDR": os.environ.get("MASTER_ADDR", "127.0.0.1"),
        "MASTER_PORT": str(port),
        "PYTHONUNBUFFERED": "1",
    }


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _list_descendants(process: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    below = list(children.get(process, []))
    for child in below:
        below += children.get(child, [])
    return below


def _send(send: Callable[[int, int], None], process: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        send(process, number)
