"""``perfscope doctor --demo`` and ``--ceiling``: a training to see its report, and what the machine attains at best."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from perfscope import wire
from perfscope.bench.launching import find_script
from perfscope.constants import MB
from perfscope.errors import PerfscopeError, UsageError
from perfscope.files import replace_file
from perfscope.models.hardware import lookup_gpu
from perfscope.outcome import Outcome
from perfscope.report import Column, Report, Section, percent
from perfscope.sources.ceilings import SCHEMA, parse_ceiling
from perfscope.tables.ceiling import Ceiling

_RANKS, _STEPS = 2, 20
_WORKLOAD = ("--strategy", "zero-1", "--model", "gpt:2x128x128", "--batch", "16", "--steps", str(_STEPS))
_CEILING_SCRIPT = Path(__file__).parents[1] / "workloads" / "ceiling.py"
_CEILING_S = 20
#: What starting the processes may take besides the measurement.
_START_S = 180.0
_COUNT_GPUS = "import torch; print(torch.cuda.device_count())"


def run_demo(run_dir: Path) -> Outcome:
    """Train a small GPT under `perfscope profile`; the report of its run. An earlier demo is replaced."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    launcher = shutil.which("deepspeed", path=path)
    if launcher is None:
        raise UsageError("deepspeed is not installed here", hint="make demo installs it beside perfscope in .venv")
    script = find_script()
    if run_dir.exists():
        run_file = run_dir / wire.RUN_FILE
        if not run_file.is_file() or Path(script).name not in run_file.read_text():
            raise UsageError(f"{run_dir} exists and is not an earlier demo", hint="choose another folder with -o")
        shutil.rmtree(run_dir)
    sys.stderr.write("perfscope: training a small GPT with DeepSpeed; the first run compiles for a minute\n")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    device = "cuda" if Path("/dev/nvidiactl").exists() else "cpu"
    words = [script, *_WORKLOAD, "--device", device]
    command = [launcher, "--num_gpus", str(_RANKS), "--master_port", str(port), *words]
    perfscope = [sys.executable, "-m", "perfscope"]
    training = subprocess.run(
        [*perfscope, "profile", "-o", str(run_dir), "--", *command],
        env={"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // _RANKS)), **os.environ, "PATH": path},
        check=False,
    )
    if training.returncode != 0:
        raise PerfscopeError("the training failed, see above")
    report = subprocess.run([*perfscope, "analyze", str(run_dir)], capture_output=True, text=True, check=False)
    return Outcome(text=f"{report.stdout}\nRun: {run_dir}\n", exit_code=report.returncode)


def measure_ceiling(output: Path | None) -> Report:
    """Run the benchmark of `analyze --ceiling` on all GPUs, in processes of its own.

    Raises:
        PerfscopeError: It failed, or did not end.
    """
    # Asked in a process of its own: a driver's state is inherited by children.
    counted = subprocess.run([sys.executable, "-c", _COUNT_GPUS], capture_output=True, text=True, check=False)
    devices = int(counted.stdout.strip() or 0) if counted.returncode == 0 else 0
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(devices)] if devices > 1 else []
    with tempfile.TemporaryDirectory(prefix="perfscope-ceiling-") as folder:
        written = Path(folder) / "ceiling.json"
        command = [
            sys.executable,
            *launcher,
            str(_CEILING_SCRIPT),
            "--write",
            str(written),
            "--seconds",
            str(_CEILING_S),
        ]
        try:
            ended = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_START_S + 4 * _CEILING_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise PerfscopeError("the benchmark did not end", hint="CUDA_VISIBLE_DEVICES=0 measures one GPU") from None
        if ended.returncode or not written.exists():
            last = next((line for line in reversed(ended.stderr.splitlines()) if "Error" in line), "it wrote nothing")
            raise PerfscopeError(f"the benchmark failed: {last.strip()}", hint="`perfscope doctor` checks the machine")
        content = written.read_bytes()
    measured = parse_ceiling(output or Path("ceiling"), content)
    if output is not None:
        replace_file(output, content)
    title = f"What this machine attains: {measured.devices} x {measured.device}"
    title = title if measured.device else "Attained by processors"
    return Report(title, {**json.loads(content), "schema": SCHEMA}, _describe_ceiling(measured))


def _describe_ceiling(measured: Ceiling) -> tuple[Section, ...]:
    gpu = lookup_gpu(measured.device) if measured.device else None
    peaks = gpu.dense_tflops if gpu else {}
    bandwidth = gpu.memory_tb_s if gpu else None
    dimensions = (Column("Type"), Column("Rows", 0), Column("Columns", 0), Column("Inner", 0))
    products = tuple(
        (*each, percent(each.tflops / peaks[each.dtype] if peaks.get(each.dtype) else None))
        for each in measured.products
    )
    memory = tuple(
        (each.operation, each.size / MB, each.tb_s, percent(each.tb_s / bandwidth if bandwidth else None))
        for each in measured.memory
    )
    collectives = tuple((each.operation, each.ranks, each.size / MB, each.busbw_gb_s) for each in measured.collectives)
    sections = (
        Section(
            "Products of matrices",
            (*dimensions, Column("TFLOP/s", 1), Column("Of the dense peak (%)", 1)),
            products,
            ("On random data, all devices at once; on zeros a product takes less power, and is faster.",),
        ),
        Section(
            "Memory",
            (Column("Operation"), Column("Size (MB)", 1), Column("TB/s", 3), Column("Of the peak (%)", 1)),
            memory,
            ("Of the bytes that are read and written.",),
        ),
        Section(
            "Collectives",
            (Column("Operation"), Column("Ranks", 0), Column("Size (MB)", 1), Column("busbw (GB/s)", 1)),
            collectives,
            ("busbw as nccl-tests defines it.",),
        ),
    )
    return tuple(section for section in sections if section.rows or section.title != "Collectives")
