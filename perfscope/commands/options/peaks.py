"""What the GPU can do at most, from ``--gpu``, ``--dtype`` and ``--peak``; never guessed."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, NamedTuple

import typer

from perfscope.models.hardware import Gpu, check_dense, describe_unlisted, list_gpu_names, lookup_gpu, resolve_family
from perfscope.report import Json

_PANEL = "Peak"


class Dtype(StrEnum):
    """The data type of the matrix products."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    TF32 = "tf32"
    FP32 = "fp32"


class PeakOptions(NamedTuple):
    """The GPU and the data type, as typed."""

    gpu: Annotated[
        str | None,
        typer.Option(help="The GPU, for its dense peak: h200-sxm, a100-40, or its CUDA name.", rich_help_panel=_PANEL),
    ] = None
    dtype: Annotated[
        Dtype | None,
        typer.Option(
            "--dtype",
            "--precision",
            help="Data type of the matrix multiplications.",
            show_default="the GPU's 16-bit format",
            rich_help_panel=_PANEL,
        ),
    ] = None
    peak: Annotated[
        float | None,
        typer.Option(
            help="Dense peak of one GPU in TFLOP/s, if --gpu does not list it.",
            show_default="of --gpu",
            rich_help_panel=_PANEL,
        ),
    ] = None


class Peak(NamedTuple):
    """The denominator of MFU and HFU.

    Attributes:
        gpu: The GPU; None where it is not given or not known.
        dtype: The data type.
        tflops: The dense peak of one GPU in TFLOP/s; None where it is not known.
        source: Where the peak comes from; empty without one.
        assumptions: What was assumed.
        warnings: Why there is no peak, where a GPU was named.
    """

    gpu: Gpu | None
    dtype: str
    tflops: float | None
    source: str
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def data(self) -> Json:
        """The peak for JSON; null without one."""
        if self.tflops is None:
            return None
        return {
            "name": self.gpu.name if self.gpu else None,
            "dtype": self.dtype,
            "peak_tflops": self.tflops,
            "source": self.source,
        }


def resolve_peak(options: PeakOptions) -> Peak:
    """Find the peak.

    Raises:
        UsageError: The GPU has no peak in the format, or the typed peak counts sparsity.
    """
    gpu = lookup_gpu(options.gpu) if options.gpu else None
    dtype = str(options.dtype) if options.dtype else (gpu.training_dtype if gpu else Dtype.BF16.value)
    assumptions = _list_assumptions(options, gpu, dtype)
    if options.peak is not None:
        check_dense(options.peak, dtype, gpu)
        return Peak(gpu, dtype, options.peak, "given as --peak", assumptions)
    if gpu is None:
        warnings = (
            (f"{describe_unlisted(options.gpu)} and there is no MFU; known: {list_gpu_names()}",) if options.gpu else ()
        )
        return Peak(None, dtype, None, "", (), warnings)
    return Peak(gpu, dtype, gpu.peak_tflops(dtype), gpu.source, assumptions)


def _list_assumptions(options: PeakOptions, gpu: Gpu | None, dtype: str) -> tuple[str, ...]:
    assumptions = []
    if options.gpu and gpu and resolve_family(options.gpu):
        assumptions.append(f"{options.gpu} is a {gpu.name} (--gpu)")
    if gpu and options.dtype is None:
        assumptions.append(f"matrix products in {dtype} (--dtype)")
    return tuple(assumptions)
