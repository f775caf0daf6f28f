"""``perfscope report``: published tables that check themselves, and reports that regenerate themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfscope.analyzers.conventions import Checkpointing
from perfscope.commands.options import FormatOption, require_positive
from perfscope.hardware import find_gpu
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.tables.published import Constant, Quantity

app = typer.Typer(help="Keep published tables right: recompute their cells, regenerate their blocks.")


@app.command()
def refresh(
    file: Annotated[Path, typer.Argument(metavar="FILE.md", help="A markdown file with tables.")],
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; list the differences and end with 3.")
    ] = False,
    seq_len: Annotated[int | None, typer.Option(help="Tokens in a sequence, whatever the text says.")] = None,
    checkpointing: Annotated[
        Checkpointing | None, typer.Option(help="Activations that are recomputed, whatever the text says.")
    ] = None,
    tp: Annotated[int | None, typer.Option(help="Tensor parallel size, where no column states it.")] = None,
    gpus: Annotated[int | None, typer.Option(help="Number of GPUs, where no column states it.")] = None,
    gpu: Annotated[str | None, typer.Option(help="The GPU, for columns that state a share of its peak.")] = None,
    format: FormatOption = Format.MARKDOWN,  # noqa: A002 - the option's name
) -> Outcome:
    """Recompute the TFLOPs, speed-up, efficiency and percentage cells of a file's tables, in place."""
    from perfscope.regenerate.refresh import refresh_file

    peak = find_gpu(gpu).dense_16bit_tflops if gpu else None
    return refresh_file(file, given(seq_len, checkpointing, tp, gpus), peak, check=check, to=format)


def given(
    seq_len: int | None, checkpointing: Checkpointing | None, tp: int | None, gpus: int | None
) -> dict[Quantity, Constant]:
    """The constants that options set."""
    counts = {
        Quantity.SEQ_LEN: ("--seq-len", seq_len),
        Quantity.TENSOR_PARALLEL: ("--tp", tp),
        Quantity.GPUS: ("--gpus", gpus),
    }
    constants = {
        quantity: Constant(require_positive(option, value), option)
        for quantity, (option, value) in counts.items()
        if value is not None
    }
    if checkpointing is not None:
        passes = 4 if checkpointing is Checkpointing.FULL else 3
        constants[Quantity.PASSES] = Constant(passes, f"--checkpointing {checkpointing}")
    return constants
