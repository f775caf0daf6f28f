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

#: A product whose name leaves open whether it is bf16 or fp16: cuDNN writes f16 for both.
SIXTEEN_BIT = "16-bit"
#: A product whose name says nothing of its type.
UNNAMED = "unnamed"

_PRODUCT = re.compile(
    r"gemm|gemv|nvjet|_xmma_|tensorop|wgmma|fmha|flash|sdpa|attention_kernel|attn_fwd|attn_bwd|matmul|_mm_|"
    r"triton_tem|fprop|dgrad|wgrad|convolve|conv2d|conv_fwd|conv_bwd|grouped_mm|bmm_|^(?:Custom_)?Cijk_",
    re.IGNORECASE,
)
_NO_PRODUCT = re.compile(
    r"splitKreduce|splitk_reduce|compute_dot_do_o|convert_dq|dot_do_o|elementwise|layer_norm|softmax_warp|quantize|"
    r"cast_transpose|transpose_|preprocess|postprocess|prepare_|memcpy|memset|reduce_kernel|nchwToNhwc|nhwcToNchw|"
    r"scatter|gather|permute|im2col|col2im",
    re.IGNORECASE,
)
_NVJET = re.compile(r"nvjet_(?:sm\d+_)?([a-z])")
_NVJET_OPERANDS = {"t": "bf16", "h": "fp16", "s": "tf32", "q": "fp8", "r": "fp8", "o": "fp4", "d": "fp64"}
_XMMA_TYPE, _XMMA_SUM = "(?:tf32|bf16|f16|f32|f64|e4m3|e5m2)", "(?:f32|f16|f64|bf16)"
_XMMA = re.compile(rf"_xmma_\w*?_{_XMMA_TYPE}{_XMMA_SUM}_({_XMMA_TYPE}){_XMMA_SUM}_")
_XMMA_TYPES = {
    "tf32": "tf32",
    "bf16": "bf16",
    "f16": "fp16",
    "f32": "fp32",
    "f64": "fp64",
    "e4m3": "fp8",
    "e5m2": "fp8",
}
_TENSILE = re.compile(r"^(?:Custom_)?Cijk_[A-Za-z]+_[A-Za-z]+_(B8|F8|F6|F4|[BHSDX])")
_TENSILE_TYPES = {"B": "bf16", "H": "fp16", "S": "fp32", "X": "tf32", "D": "fp64"}
_TENSILE_TYPES |= {"F8": "fp8", "B8": "fp8", "F6": "fp6", "F4": "fp4"}
_MATMUL_OGS = re.compile(r"matmul_ogs_[NT]{3}_\w+?x(bf16|fp16)x")
_TRITON_TYPES = {"bf16": "bf16", "fp16": "fp16"}
_BY_OPERANDS = (
    (_NVJET, _NVJET_OPERANDS),
    (_XMMA, _XMMA_TYPES),
    (_TENSILE, _TENSILE_TYPES),
    (_MATMUL_OGS, _TRITON_TYPES),
)
_CUDNN_FLASH = re.compile(r"cudnn\w*_f16_|cudnn\w*_fort_native_sdpa")
#: The words in the order in which they decide: bf16 contains f16, and a TF32 product has operands of f32.
_WORDS = (
    ("fp8", re.compile(r"(?<!u)e4m3|e5m2|fp8|float8|f8f8|bf8", re.IGNORECASE)),
    ("fp6", re.compile(r"e3m2|e2m3|fp6", re.IGNORECASE)),
    ("fp4", re.compile(r"e2m1|fp4|nvf4|mxf4|ue4m3xf4", re.IGNORECASE)),
    ("bf16", re.compile(r"bf16|bfloat16", re.IGNORECASE)),
    ("fp16", re.compile(r"fp16|f16|half|hgemm|_h(?:884|1688|16816|161616)", re.IGNORECASE)),
    ("fp64", re.compile(r"f64|double|d884|dgemm", re.IGNORECASE)),
    ("tf32", re.compile(r"tf32|tfloat32|s1688(?:gemm|fprop|dgrad|wgrad)", re.IGNORECASE)),
    (SIXTEEN_BIT, re.compile(r"s16816|s161616|s884")),
    ("fp32", re.compile(r"sgemm|simt|fp32|f32|float|gemv2|scudnn", re.IGNORECASE)),
)


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
            return types.get(match[1], UNNAMED)
    if _CUDNN_FLASH.search(name):
        return "bf16" if "bf16" in name else SIXTEEN_BIT
    return next((precision for precision, words in _WORDS if words.search(name)), UNNAMED)


_FUSED_ATTENTION = re.compile(r"fmha|flash|native_sdpa|attn_fwd|attn_bwd|attention_kernel")


def is_fused_attention(name: str) -> bool:
    """Whether a kernel that multiplies is one of fused attention.

    >>> is_fused_attention("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x128")
    True
    """
    return bool(_FUSED_ATTENTION.search(name))


#: The names that the profiler gives to types of elements, and their products; fp32 may be multiplied as TF32.
_ELEMENTS = {
    "c10::BFloat16": "bf16",
    "c10::Half": "fp16",
    "float": "fp32",
    "double": "fp64",
    "c10::complex<float>": "fp32",
}


def element_precision(element: str) -> str:
    """The data type of a product whose operands have elements of this type, as the profiler names it; else UNNAMED.

    >>> element_precision("c10::Float8_e4m3fn")
    'fp8'
    """
    if element.startswith("c10::Float8"):
        return "fp8"
    if element.startswith("c10::Float4"):
        return "fp4"
    return _ELEMENTS.get(element, UNNAMED)
