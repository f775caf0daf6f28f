"""Reads tables of configurations and their step times: CSV with one row a configuration, also compressed by gzip.

Needed are the columns in ``_REQUIRED``, with steps in seconds. Degrees are ``tp``, ``pp``, ``virtual_stages``, ``cp``
and ``zero``. Models that differ from a GPT have ``kv_heads``, ``ffn``, ``mlp_matrices`` and ``tied``. ``_OPTIONAL``
lists what else is read, with its usual value.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Mapping
from pathlib import Path

from perfscope.errors import SourceError, UsageError
from perfscope.models.conventions import Checkpointing
from perfscope.models.hardware import find_gpu
from perfscope.models.transformer import Transformer, require_consistent
from perfscope.tables.step_time import MeasuredStep, MeasuredSteps, StepSetup

_REQUIRED = ("gpu", "gpus", "layers", "hidden", "heads", "vocabulary", "seq_len", "micro_batch", "gbs", "step_s")
_OPTIONAL = {
    "source": "",
    "recompute": "none",
    "attention": "flash",
    "dtype": "bf16",
    "sequence_parallel": "0",
    "gradient_bytes": "2",
    "micro_batches": "",
    "network_gb_s": "",
}
_GZIP = b"\x1f\x8b"


def is_step_table(path: Path) -> bool:
    """Whether a file is named as such a table."""
    return path.name.endswith((".csv", ".csv.gz"))


def read_step_times(path: Path) -> MeasuredSteps:
    """Read the rows that have a step time; the others are configurations that did not run.

    Raises:
        SourceError: The file cannot be read, or lacks a column.
    """
    try:
        content = path.read_bytes()
        text = (gzip.decompress(content) if content.startswith(_GZIP) else content).decode()
    except (OSError, EOFError, ValueError) as error:
        raise SourceError(path, f"cannot be read: {error}") from None
    lines = csv.DictReader(io.StringIO(text))
    missing = [name for name in _REQUIRED if name not in (lines.fieldnames or ())]
    if missing:
        raise SourceError(path, f"has no column {missing[0]}", hint=f"needed: {', '.join(_REQUIRED)}")
    rows: list[MeasuredStep] = []
    refused: list[tuple[str, str]] = []
    for line in lines:
        if not line["step_s"]:
            continue
        source = line.get("source") or path.name
        try:
            rows.append(_parse_row(line, source))
        except (UsageError, ValueError, ZeroDivisionError) as error:
            refused.append((source, f"line {lines.line_num}: {error}"))
    return MeasuredSteps(tuple(rows), tuple(refused))


def _parse_row(line: Mapping[str, str | None], source: str) -> MeasuredStep:
    def number(name: str, default: int = 1) -> int:
        return int(line.get(name) or default)

    def text(name: str) -> str:
        return line.get(name) or _OPTIONAL[name]

    heads, hidden = number("heads"), number("hidden")
    model = Transformer(
        name=source,
        layers=number("layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=number("kv_heads", heads),
        head_dim=hidden // heads,
        ffn=number("ffn", 4 * hidden),
        mlp_matrices=number("mlp_matrices", 2),
        vocabulary=number("vocabulary"),
        tied=bool(number("tied")),
    )
    gpus, micro_batch, gbs = number("gpus"), number("micro_batch"), number("gbs")
    tensor, pipeline, context = number("tp"), number("pp"), number("cp")
    data = gpus // (tensor * pipeline * context)
    micro_batches = number("micro_batches", gbs // (data * micro_batch))
    setup = StepSetup(
        model=require_consistent(model),
        gpu=str(line["gpu"]),
        seq_len=number("seq_len"),
        micro_batch=micro_batch,
        micro_batches=micro_batches,
        dtype=text("dtype"),
        tensor=tensor,
        pipeline=pipeline,
        virtual=number("virtual_stages"),
        data=data,
        context=context,
        zero=number("zero", 0),
        checkpointing=Checkpointing(text("recompute")),
        is_eager=text("attention") == "eager",
        sequence_parallel=text("sequence_parallel") == "1",
        gradient_bytes=int(text("gradient_bytes")),
        network_gb_s=float(text("network_gb_s")) if text("network_gb_s") else None,
    )
    find_gpu(setup.gpu).peak_tflops(setup.dtype)  # refuses a GPU or a data type that has no peak
    if setup.gpus != gpus or setup.gbs != gbs:
        product = f"{data} replicas x {micro_batch} x {micro_batches} micro-batches = {setup.gbs}"
        raise UsageError(f"a global batch of {gbs} on {gpus} GPUs is not {product}")
    seconds = float(line["step_s"] or "nan")
    if not 0 < seconds < float("inf"):
        raise UsageError(f"a step of {seconds} s is not possible")
    return MeasuredStep(setup, seconds, source)
