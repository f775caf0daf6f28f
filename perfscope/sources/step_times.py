"""Reads tables of configurations and their step times: CSV with one row a configuration, also compressed by gzip.

Columns: ``gpu``, ``gpus``, ``seq_len``, ``micro_batch``, ``gbs`` and ``step_s`` in seconds. The model is its name in
``model``, or ``layers``, ``hidden``, ``heads``, ``vocabulary`` and, where they differ from a GPT's, ``kv_heads``,
``ffn``, ``mlp_matrices``, ``tied``. Where they differ from 1 ``tp``, ``pp``, ``virtual_stages``, ``cp``, ``ep``,
``zero``; and what ``_OPTIONAL`` lists. ``products_s`` and so on are the seconds of ``StepTerms``. Others are not read.
Where ``source`` is nanotron, its constants predict the row.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from perfscope.errors import SourceError, UsageError
from perfscope.models.conventions import Checkpointing
from perfscope.models.hardware import find_gpu
from perfscope.models.transformer import Transformer, require_consistent
from perfscope.sources.models.presets import find_preset
from perfscope.tables.step_time import NANOTRON, MeasuredStep, MeasuredSteps, StepSetup, StepTerms

_REQUIRED = ("gpu", "gpus", "seq_len", "micro_batch", "gbs", "step_s")
_DIMENSIONS = ("layers", "hidden", "heads", "vocabulary")
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
_MAY_BE_ZERO = ("zero", "tied")
_GZIP = b"\x1f\x8b"


def is_step_table(path: Path) -> bool:
    """Whether a file is named as such a table."""
    return path.name.endswith((".csv", ".csv.gz"))


def read_step_times(path: Path) -> MeasuredSteps:
    """Read the rows that have a step time; the others are configurations that did not run.

    Raises:
        SourceError: The file cannot be read, or lacks a column or a step time.
    """
    try:
        content = path.read_bytes()
        text = (gzip.decompress(content) if content.startswith(_GZIP) else content).decode()
    except (OSError, EOFError, ValueError) as error:
        raise SourceError(path, f"cannot be read: {error}") from None
    lines = csv.DictReader(io.StringIO(text))
    columns = lines.fieldnames or ()
    needed = _REQUIRED if "model" in columns else (*_REQUIRED, *_DIMENSIONS)
    missing = [name for name in needed if name not in columns]
    if missing:
        raise SourceError(
            path,
            f"has no column {missing[0]}",
            hint=f"needed: {', '.join(_REQUIRED)}, and model or {', '.join(_DIMENSIONS)}",
        )
    rows: list[MeasuredStep] = []
    refused: list[tuple[str, str]] = []
    for line in lines:
        if not line["step_s"]:
            continue
        source = line.get("source") or path.name
        try:
            rows.append(parse_row(line, source))
        except (UsageError, ValueError, ZeroDivisionError) as error:
            refused.append((source, f"line {lines.line_num}: {error}"))
    if not rows and not refused:
        raise SourceError(path, "has no row with a step time")
    return MeasuredSteps(tuple(rows), tuple(refused))


def _read_number(line: Mapping[str, str | None], name: str, default: int = 1) -> int:
    value = int(line.get(name) or default)
    if value < (name not in _MAY_BE_ZERO):
        raise UsageError(f"{name} is {value}")
    return value


def _read_model(line: Mapping[str, str | None]) -> Transformer:
    """The model of a row; UsageError where its name is unknown or dimensions contradict each other."""
    if name := line.get("model"):
        preset = find_preset(name)
        if preset is None:
            raise UsageError(f"the model {name!r} is unknown")
        return preset.transformer

    number = partial(_read_number, line)
    hidden, heads = number("hidden"), number("heads")
    model = Transformer(
        name="",
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
    return require_consistent(model)


def parse_row(line: Mapping[str, str | None], source: str) -> MeasuredStep:
    """Parse a row; UsageError, ValueError or ZeroDivisionError where it contradicts itself."""
    number = partial(_read_number, line)

    def text(name: str) -> str:
        return line.get(name) or _OPTIONAL[name]

    gpus, micro_batch, gbs = number("gpus"), number("micro_batch"), number("gbs")
    tensor, pipeline, context = number("tp"), number("pp"), number("cp")
    data = gpus // (tensor * pipeline * context)
    micro_batches = number("micro_batches", gbs // (data * micro_batch))
    setup = StepSetup(
        model=_read_model(line),
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
        expert=number("ep"),
        zero=number("zero", 0),
        checkpointing=Checkpointing(text("recompute")),
        is_eager=text("attention") == "eager",
        sequence_parallel=text("sequence_parallel") == "1",
        gradient_bytes=int(text("gradient_bytes")),
        software=NANOTRON if source == NANOTRON else "",
        network_gb_s=float(text("network_gb_s")) if text("network_gb_s") else None,
    )
    find_gpu(setup.gpu).peak_tflops(setup.dtype)  # refuses a GPU or a data type that has no peak
    if setup.gpus != gpus or setup.gbs != gbs:
        product = f"{data} replicas x {micro_batch} x {micro_batches} micro-batches = {setup.gbs}"
        raise UsageError(f"a global batch of {gbs} on {gpus} GPUs is not {product}")
    seconds = float(line["step_s"] or "nan")
    if not 0 < seconds < float("inf"):
        raise UsageError(f"a step of {seconds} s is not possible")
    terms = StepTerms(*(float(cell) if (cell := line.get(f"{name}_s")) else None for name in StepTerms._fields))
    return MeasuredStep(setup, seconds, source, terms)
