"""``perfscope ceiling``: what this machine attains at best, for `perfscope analyze --ceiling`."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from perfscope.commands.options.common import FormatOption, require_positive
from perfscope.constants import MB
from perfscope.errors import PerfscopeError
from perfscope.files import replace_file
from perfscope.models.hardware import Gpu, lookup_gpu
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.report import Column, Report, Section, percent
from perfscope.sources.ceilings import SCHEMA, parse_ceiling
from perfscope.tables.ceiling import Ceiling

_SCRIPT = Path(__file__).parents[1] / "workloads" / "ceiling.py"
#: What starting the processes may take besides the measurement.
_START_S = 180.0
_COUNT_GPUS = "import torch; print(torch.cuda.device_count())"


def ceiling(
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", help="File for what was measured, for --ceiling of analyze.", show_default="none"
        ),
    ] = None,
    devices: Annotated[
        int | None, typer.Option(help="Number of GPUs that take part.", show_default="all of this machine")
    ] = None,
    seconds: Annotated[int, typer.Option(help="Time of the measurement, in units of a second.")] = 20,
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Measure what this machine attains at best: products of matrices, copies in memory, collectives."""
    require_positive("--seconds", seconds)
    if devices is not None:
        require_positive("--devices", devices)
    content = _measure(devices or _count_gpus() or 1, seconds)
    measured = parse_ceiling(output or Path("ceiling"), content)
    if output is not None:
        replace_file(output, content)
    data = json.loads(content)
    return Outcome(Report(_title(measured), {**data, "schema": SCHEMA}, _sections(measured)), format)


def _count_gpus() -> int:
    """How many GPUs torch sees, asked in a process of its own: a driver's state is inherited by children."""
    answer = subprocess.run([sys.executable, "-c", _COUNT_GPUS], capture_output=True, text=True, check=False)
    return int(answer.stdout.strip() or 0) if answer.returncode == 0 else 0


def _measure(devices: int, seconds: int) -> bytes:
    """Run the benchmark in processes of its own.

    Raises:
        PerfscopeError: It failed, or did not end.
    """
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(devices)] if devices > 1 else []
    with tempfile.TemporaryDirectory(prefix="perfscope-ceiling-") as folder:
        written = Path(folder) / "ceiling.json"
        command = [sys.executable, *launcher, str(_SCRIPT), "--write", str(written), "--seconds", str(seconds)]
        try:
            ended = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=_START_S + 4 * seconds, check=False
            )
        except subprocess.TimeoutExpired:
            raise PerfscopeError("the benchmark did not end", hint="fewer --seconds, or fewer --devices") from None
        if ended.returncode or not written.exists():
            last = next((line for line in reversed(ended.stderr.splitlines()) if "Error" in line), "it wrote nothing")
            raise PerfscopeError(f"the benchmark failed: {last.strip()}", hint="`perfscope doctor` checks the machine")
        return written.read_bytes()


def _title(measured: Ceiling) -> str:
    device = measured.device or "processors"
    return f"What this machine attains: {measured.devices} x {device}" if measured.device else f"Attained by {device}"


def _sections(measured: Ceiling) -> tuple[Section, ...]:
    gpu = lookup_gpu(measured.device) if measured.device else None
    sections = [
        Section(
            "Products of matrices",
            (
                Column("Type"),
                Column("Rows", 0),
                Column("Columns", 0),
                Column("Inner", 0),
                Column("TFLOP/s", 1),
                Column("Of the dense peak (%)", 1),
            ),
            tuple((*product, percent(_of_peak(gpu, product.dtype, product.tflops))) for product in measured.products),
            ("On random data, all devices at once; on zeros a product takes less power, and is faster.",),
        ),
        Section(
            "Memory",
            (Column("Operation"), Column("Size (MB)", 1), Column("TB/s", 3), Column("Of the peak (%)", 1)),
            tuple(
                (rate.operation, rate.size / MB, rate.tb_s, percent(_of_bandwidth(gpu, rate.tb_s)))
                for rate in measured.memory
            ),
            ("Of the bytes that are read and written.",),
        ),
    ]
    if measured.collectives:
        columns = (Column("Operation"), Column("Ranks", 0), Column("Size (MB)", 1), Column("busbw (GB/s)", 1))
        rows = tuple((rate.operation, rate.ranks, rate.size / MB, rate.busbw_gb_s) for rate in measured.collectives)
        sections.append(Section("Collectives", columns, rows, ("busbw as nccl-tests defines it.",)))
    return tuple(sections)


def _of_peak(gpu: Gpu | None, dtype: str, tflops: float) -> float | None:
    peak = gpu.dense_tflops.get(dtype) if gpu else None
    return tflops / peak if peak else None


def _of_bandwidth(gpu: Gpu | None, tb_s: float) -> float | None:
    return tb_s / gpu.memory_tb_s if gpu and gpu.memory_tb_s else None
