"""In which data type a kernel multiplies, by its name.

The rules follow the names that the libraries of matrix products give their kernels. cuBLASLt's ``nvjet`` names begin
with a letter for each operand: t bf16, h fp16, s fp32 as TF32, q and r fp8, o fp4, d fp64. One letter stands for two
equal operands: ``nvjet_sm90_tst_...`` multiplies bf16, ``nvjet_qqtst_...`` fp8. The type of the sums comes next (s:
fp32), then the type of the result. ``xmma`` names state operands and the type they are multiplied in:
``f32f32_tf32f32``. CUTLASS, flash-attention, AMD's Tensile and the rest state the type as a word. ``ue4m3`` and
``ue8m0`` are scale factors of blocks. Operands of 8 and 4 bits multiply as fp8. Triton's ``matmul_ogs`` converts the
weights to the type of the activations, its second word.
"""

from __future__ import annotations

import re
from functools import cache

from perfscope.models.data_files import read_data

#: A product whose name leaves open whether it is bf16 or fp16: cuDNN writes f16 for both.
SIXTEEN_BIT = "16-bit"
#: A product whose name says nothing of its type.
UNNAMED = "unnamed"

_NAMES = read_data("kernels")["precision"]
_PRODUCT, _NO_PRODUCT = (re.compile("|".join(_NAMES[key]), re.IGNORECASE) for key in ("is_product", "is_no_product"))
_BY_OPERANDS = tuple((re.compile(each["name"]), each["types"]) for each in _NAMES["operands"])
_CUDNN_FLASH = re.compile(_NAMES["cudnn_flash"])
_WORDS = tuple((precision, re.compile(words, re.IGNORECASE)) for precision, words in _NAMES["words"].items())


@cache
def product_precision(name: str) -> str | None:
    """The data type that a kernel multiplies in, SIXTEEN_BIT or UNNAMED; None for a kernel that is no product.

    >>> product_precision("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT")
    'bf16'
    >>> product_precision("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_stage3")
    'tf32'
    >>> product_precision("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>")
    """
    if not _PRODUCT.search(name) or _NO_PRODUCT.search(name):
        return None
    for pattern, types in _BY_OPERANDS:
        match = pattern.search(name)
        if match:
            return str(types.get(match[1], UNNAMED))
    if _CUDNN_FLASH.search(name):
        return "bf16" if "bf16" in name else SIXTEEN_BIT
    return next((precision for precision, words in _WORDS if words.search(name)), UNNAMED)


def is_fused_attention(name: str) -> bool:
    """Whether a kernel that multiplies is one of fused attention.

    >>> is_fused_attention("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x128")
    True
    """
    return re.search(_NAMES["fused_attention"], name) is not None


def element_precision(element: str) -> str:
    """The data type of a product whose operands have elements of this type, as the profiler names it; else UNNAMED.

    >>> element_precision("c10::Float8_e4m3fn")
    'fp8'
    """
    if element.startswith("c10::Float8"):
        return "fp8"
    if element.startswith("c10::Float4"):
        return "fp4"
    return str(_NAMES["elements"].get(element, UNNAMED))
