"""Which operators multiply, by their names: PyTorch's own, and those of libraries; and which tell passes apart.

Attention that PyTorch writes out as products of its own (``_math``) is not among them.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from perfscope.tables.products import Scope

_OF_PYTORCH = (
    r"mm|addmm|_addmm_activation|bmm|baddbmm|_scaled_mm(?:_v2)?|_grouped_mm|_scaled_grouped_mm(?:_v2)?|_int_mm|"
    r"_scaled_dot_product_(?!attention_math)\w*attention\w*|_(?:flash|efficient|cudnn)_attention_(?:forward|backward)|"
    r"(?:_|cudnn_|miopen_|mkldnn_)?convolution(?!.*double)\w*|(?:_cudnn|miopen|mkldnn)_rnn(?:_layer)?(?:_backward)?"
)
_CHEAP = r"_softmax|gelu|silu|relu|native_layer_norm|_fused_rms_norm"
_FLASH = r"_flash_attn_(?:varlen_)?(?:forward|backward)"
#: Words in names of operators of libraries that multiply, and in those of their helpers that do not.
_OF_LIBRARIES = (
    r"gemm|matmul|_mm\b|attention|attn|fmha|\bmha_|flash_?mla|\bmla_decode|\bpa_|moe_forward|fused_moe|fused_experts|"
    r"ck_moe_stage|asm_moe|\w*flash_(?:fwd|bwd)\b|\bvarlen_fwd\b|\b(?:fwd|bwd)\b|f8f8bf16|bf16bf16bf16|sage_fwd"
)
_HELPERS = r"cache|moe_sum|moe_sorting|moe_align|topk|metadata|schedule|_norm|all_?reduce|all_?gather|reduce_?scatter"
#: Functions with a backward pass of their own, which have no namespace.
_FUNCTIONS = (
    r"FlashAttn\w*Func\w*|FusedAttn\w*|\w+FlashAttn\w*Func\w*|EvoformerAttention\w*|ConvBias\w*_\w*|"
    r"_(?:LayerNorm)?(?:Linear|MLP)(?:Backward)?|_GroupedLinear(?:Backward)?|GroupedGemm\w*|"
    r"LinearWith\w+|MatmulTo\w+|sage_fwd\w*"
)
_NAME = re.compile(
    rf"(?:aten::(?:(?P<pytorch>{_OF_PYTORCH})|(?P<cheap>{_CHEAP}))|flash_attn::(?P<flash>{_FLASH})|"
    rf"(?P<library>(?!aten::|autograd::|torch::)\w+::(?=.*(?:{_OF_LIBRARIES}))(?!.*(?:{_HELPERS})).*)|"
    rf"(?P<function>{_FUNCTIONS})|autograd::engine::evaluate_function: (?P<node>.*)|(?P<other_function>\w+))\Z"
)
_BACKWARD = re.compile(r"Backward\d*\Z")
_COMPILED = "CompiledFunction"
_NEEDS_VALUES = re.compile(r"convolution|(?:flash|efficient|cudnn)_attention_|varlen|\bfwd|\bbwd")


class Meaning(NamedTuple):
    """What an operator's name says.

    Attributes:
        product: The operator without ``aten::``; empty where it does not multiply.
        scope: What it is to autograd; absent where that does not count.
    """

    product: str
    scope: Scope | None

    @property
    def is_backward(self) -> bool:
        """Whether it is a backward pass: that of a function has the function's number in autograd."""
        return bool(_BACKWARD.search(self.product))


def find_meaning(name: str) -> Meaning | None:
    """What an operator's name says; None where it neither multiplies nor tells passes apart.

    >>> find_meaning("aten::mm")
    Meaning(product='mm', scope=None)
    >>> find_meaning("autograd::engine::evaluate_function: MmBackward0")
    Meaning(product='', scope=<Scope.NODE: 0>)
    >>> find_meaning("CompiledFunction")
    Meaning(product='', scope=<Scope.COMPILED: 4>)
    >>> find_meaning("vllm::unified_attention_with_output").product
    'vllm::unified_attention_with_output'
    """
    match = _NAME.match(name)
    if match is None:
        return None
    product = next((match[group] for group in ("pytorch", "flash", "library", "function") if match[group]), "")
    if product:
        return Meaning(product, None)
    if match["node"]:
        is_function = match["node"].endswith("Backward")
        is_compiled = match["node"].startswith(_COMPILED)
        return Meaning("", Scope.COMPILED_NODE if is_compiled else Scope.FUNCTION_NODE if is_function else Scope.NODE)
    if match["cheap"]:
        return Meaning("", Scope.CHEAP)
    if not match["other_function"] or _BACKWARD.search(match["other_function"]):
        return None
    return Meaning("", Scope.COMPILED if match["other_function"] == _COMPILED else Scope.FUNCTION)


def needs_values(operator: str) -> bool:
    """Whether an operator's operations depend on inputs that are numbers: strides, or the lengths of sequences.

    >>> needs_values("convolution"), needs_values("mm")
    (True, False)
    """
    return bool(_NEEDS_VALUES.search(operator))
