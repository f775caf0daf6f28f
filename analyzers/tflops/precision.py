"""In which data types a run multiplies, and the peak of a GPU in that mixture.

The parameters' type is no evidence: autocast, FSDP's mixed precision and fp8 layers cast them. The best evidence is
what the user states. The traces come next: types of the operators' inputs, else names of kernels. The last is what the
hooks recorded: the forward pass, autocast, the configuration.

With operations F_p in data type p and dense peaks P_p, the peak of the mixture is sum F_p / sum (F_p / P_p). By kernels
alone, F_p is their time times P_p: as if all of them used the same share of their peaks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

from perfscope.analyzers.tflops.operation_counts import TracedOperations
from perfscope.models.hardware import Gpu
from perfscope.report import NEGLIGIBLE
from perfscope.result import Doc, Figures, figure
from perfscope.tables.kernel_precision import SIXTEEN_BIT, UNNAMED
from perfscope.wire.model import FP4_LAYERS

if TYPE_CHECKING:
    from perfscope.tables.model import Model

HOW_TO_TELL = "State it with --precision, or the peak itself with --peak, or profile with --shapes"
_BY_KERNELS = "the names of the kernels in the traces"
_BY_OPERATORS = "the types of the operators' inputs in the traces"
_SIXTEEN = ("bf16", "fp16")
_FP32, _TF32 = "fp32", "tf32"


class ProductPrecision(Figures, frozen=True):
    """The data types of matrix products: shares of the operations, the largest first; empty where unknown."""

    by_type: Mapping[str, float]
    evidence: Annotated[str, Doc("What shows it, as a phrase; why nothing does, where there are no shares.")]

    @figure
    def shares(self) -> Mapping[str, float] | None:
        """Share of the operations by type."""
        return self.by_type or None

    @property
    def main(self) -> str | None:
        """The data type of the most operations; absent where unknown."""
        return next(iter(self.by_type), None)

    def sentence(self) -> str:
        """The precision in words."""
        if not self.by_type:
            return f"The precision of the products is unknown: {self.evidence}."
        if len(self.by_type) == 1:
            return f"Products in {self.main}, by {self.evidence}."
        parts = ", ".join(f"{dtype} {share:.1%}" for dtype, share in self.by_type.items())
        estimate = ", their operations estimated by time and peak" if self.evidence == _BY_KERNELS else ""
        return f"Products in {parts} of the operations, by {self.evidence}{estimate}."


def find_precision(
    models: Sequence[Model], traced: Sequence[TracedOperations], gpu: Gpu | None, stated: str | None = None
) -> ProductPrecision:
    """The precision of a run: as the user states it, as its traces show it, or as its ranks recorded it."""
    if stated is not None:
        return ProductPrecision({stated: 1.0}, "--precision")
    float32 = next((model.signs.float32 for model in models if model.signs.float32), None)
    by_rank: dict[int | None, _Shown] = {}  # of several traces the one whose operators state their types
    for operations in traced:
        shown = _shown(operations, gpu, float32)
        if shown and (operations.rank not in by_rank or shown.evidence != _BY_KERNELS):
            by_rank[operations.rank] = shown
    return _join_traces(by_rank) if by_rank else _join_records([read_signs(model) for model in models])


def peak_of(gpu: Gpu, shares: Mapping[str, float]) -> float | None:
    """The dense peak of a GPU for a mixture of data types; None where it has none in one that matters.

    >>> from perfscope.models.hardware import find_gpu
    >>> round(peak_of(find_gpu("h200-sxm"), {"fp8": 0.5, "bf16": 0.5}), 1)
    1319.2
    """
    if len(shares) == 1:
        return gpu.dense_tflops.get(next(iter(shares)))
    listed = {dtype: share for dtype, share in shares.items() if dtype in gpu.dense_tflops}
    covered = sum(listed.values())
    if not covered or covered < 1 - NEGLIGIBLE:
        return None
    return covered / sum(share / gpu.dense_tflops[dtype] for dtype, share in listed.items())


def read_signs(model: Model) -> tuple[str | None, str]:
    """The data type that a rank's record shows, and what shows it; why none, where it shows none."""
    signs = model.signs
    products = max(signs.products, key=lambda dtype: signs.products[dtype], default=None)
    low = "fp4" if signs.fp8 and signs.fp8.endswith(FP4_LAYERS) else "fp8"
    evidence = (
        (low if signs.fp8 else None, f"{low} layers of {signs.fp8}"),
        (products, "the operators of a forward pass"),
        (signs.autocast, "autocast"),
        (signs.policy, "FSDP's mixed precision"),
        (signs.engine, "the configuration of the framework"),
    )
    dtype, source = next(((dtype, source) for dtype, source in evidence if dtype is not None), (None, ""))
    if dtype == _FP32:
        if signs.float32 is None:
            return None, "the products are of fp32, and whether they are multiplied as TF32 was not recorded"
        return signs.float32, f"{source}, and PyTorch's setting for fp32"
    if not source and model.weights_dtype is None:
        return None, "no rank recorded it"
    unseen = f"the parameters are {model.weights_dtype}, but what they are cast to for a product was not seen"
    return dtype, source or unseen


class _Shown(NamedTuple):
    weights: Mapping[str, float]
    evidence: str


def _shown(operations: TracedOperations, gpu: Gpu | None, float32: str | None) -> _Shown | None:
    kernels = _name_all(operations.kernel_ns, gpu)
    weights = _by_operators(operations, kernels, gpu, float32)
    if weights:
        splits = _FP32 in weights and _TF32 in weights
        return _Shown(weights, _BY_OPERATORS + (", fp32 and TF32 by the time and peak of kernels" if splits else ""))
    total, open_ns = sum(operations.kernel_ns.values()), operations.kernel_ns.get(UNNAMED, 0)
    if not kernels or 2 * open_ns > total:
        return None
    return _Shown(_weigh(kernels, gpu), _BY_KERNELS)


def _name_all(kernel_ns: Mapping[str, int], gpu: Gpu | None) -> dict[str, int]:
    """Times of the kernels that state a type; those that say 16 bit are of the type that the others have."""
    named = {dtype: time for dtype, time in kernel_ns.items() if dtype not in (SIXTEEN_BIT, UNNAMED)}
    if sixteen := kernel_ns.get(SIXTEEN_BIT, 0):
        possible = [name for name in _SIXTEEN if gpu is None or name in gpu.dense_tflops]
        dtype = max(possible or _SIXTEEN, key=lambda name: named.get(name, 0))
        named[dtype] = named.get(dtype, 0) + sixteen
    return named


def _weigh(kernels: Mapping[str, int], gpu: Gpu | None) -> dict[str, float]:
    """Operations of kernels, in any unit: time x peak; the time alone where a peak is unknown."""
    peaks = gpu.dense_tflops if gpu is not None and all(dtype in gpu.dense_tflops for dtype in kernels) else {}
    return {dtype: time * peaks.get(dtype, 1.0) for dtype, time in kernels.items()}


def _by_operators(
    operations: TracedOperations, kernels: Mapping[str, int], gpu: Gpu | None, float32: str | None
) -> dict[str, float] | None:
    """Operations by data type where every product states its shapes and types and no kernel contradicts them."""
    stated = {dtype: flops for dtype, flops in operations.by_precision.items() if flops}
    if not stated or operations.without_shapes or not operations.is_covered or UNNAMED in stated:
        return None
    of_float32 = stated.pop(_FP32, 0.0)
    if of_float32:
        of_kernels = _weigh({dtype: kernels[dtype] for dtype in (_FP32, _TF32) if dtype in kernels}, gpu)
        if not of_kernels and float32 is not None:
            of_kernels = {float32: 1.0}
        if not of_kernels:
            return None
        total = sum(of_kernels.values())
        stated.update({dtype: of_float32 * weight / total for dtype, weight in of_kernels.items()})
    total_ns = sum(kernels.values())
    if any(time > NEGLIGIBLE * total_ns and dtype not in stated for dtype, time in kernels.items()):
        return None
    return stated


def _join_traces(by_rank: Mapping[int | None, _Shown]) -> ProductPrecision:
    weights: Counter[str] = Counter()
    for shown in by_rank.values():
        weights.update(_largest_first(shown.weights))
    return ProductPrecision(_largest_first(weights), next(iter(by_rank.values())).evidence)


def _join_records(recorded: Sequence[tuple[str | None, str]]) -> ProductPrecision:
    known = [(dtype, evidence) for dtype, evidence in recorded if dtype is not None]
    if not known:
        return ProductPrecision({}, next((evidence for _, evidence in recorded), "no rank recorded it"))
    return ProductPrecision(_largest_first(Counter(dtype for dtype, _ in known)), known[0][1])


def _largest_first(weights: Mapping[str, float]) -> dict[str, float]:
    total = sum(weights.values())
    return {dtype: weights[dtype] / total for dtype in sorted(weights, key=lambda dtype: (-weights[dtype], dtype))}
