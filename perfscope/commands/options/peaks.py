"""What the GPU can do at most, from ``--gpu``, ``--dtype`` and ``--peak``; never guessed."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, NamedTuple

import typer

from perfscope.models.hardware import Gpu, check_dense, family_of, look_up, names, not_known
from perfscope.report import Json

_PANEL = "Peak"


class Dtype(StrEnum):
    """The number format of the matrix products."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    TF32 = "tf32"
    FP32 = "fp32"


GpuOption = Annotated[
    str | None,
    typer.Option(help="The GPU, for its dense peak: h200-sxm, a100-40, or its CUDA name.", rich_help_panel=_PANEL),
]
DtypeOption = Annotated[
    Dtype | None,
    typer.Option(
        help="Number format of the matrix products.  [default: the GPU's 16-bit format]", rich_help_panel=_PANEL
    ),
]
PeakOption = Annotated[
    float | None,
    typer.Option(help="Dense peak of one GPU in TFLOP/s, for one that is not listed.", rich_help_panel=_PANEL),
]


class Peak(NamedTuple):
    """The denominator of MFU and HFU.

    Attributes:
        gpu: The GPU; absent where it is not given or not known.
        dtype: The number format.
        tflops: The dense peak of one GPU; absent where it is not known.
        source: Where the peak comes from; empty without one.
        assumed: What was assumed.
        warnings: Why there is no peak, where a GPU was asked for.
    """

    gpu: Gpu | None
    dtype: str
    tflops: float | None
    source: str
    assumed: tuple[str, ...] = ()
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


def resolve_peak(gpu_name: str | None, dtype: Dtype | None, peak_tflops: float | None) -> Peak:
    """Find the peak.

    Raises:
        UsageError: The GPU has no peak in the format, or the peak that was given counts sparsity.
    """
    gpu = look_up(gpu_name) if gpu_name else None
    chosen = str(dtype) if dtype else (gpu.training_dtype if gpu else Dtype.BF16.value)
    assumed = _assumed(gpu_name, gpu, dtype, chosen)
    if peak_tflops is not None:
        check_dense(peak_tflops, chosen, gpu)
        return Peak(gpu, chosen, peak_tflops, "given as --peak", assumed)
    if gpu is None:
        warnings = (f"{not_known(gpu_name)} and there is no MFU; known: {names()}",) if gpu_name else ()
        return Peak(None, chosen, None, "", (), warnings)
    return Peak(gpu, chosen, gpu.peak_tflops(chosen), gpu.source, assumed)


def _assumed(gpu_name: str | None, gpu: Gpu | None, dtype: Dtype | None, chosen: str) -> tuple[str, ...]:
    assumed = []
    if gpu_name and gpu and family_of(gpu_name):
        assumed.append(f"{gpu_name} is a {gpu.name} (--gpu)")
    if gpu and dtype is None:
        assumed.append(f"matrix products in {chosen} (--dtype)")
    return tuple(assumed)
