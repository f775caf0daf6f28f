"""Operations of operators: against PyTorch's counter on real networks, and by hand for libraries that run on GPUs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import profile, record_function
from torch.utils.flop_counter import FlopCounterMode

from perfscope.analyzers.tflops.operation_counts import Operations, count_operations
from perfscope.analyzers.tflops.operator_rules import count_flops
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.products import Product
from perfscope.tables.trace import BASIC_EVENTS, Events
from tests.analyzers.tflops.resnet import ResNet18

Run = Callable[[], object]


def counted_by_pytorch(run: Run) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())


def counted_in_trace(run: Run, path: Path) -> Operations:
    with profile(record_shapes=True) as profiler, record_function("ProfilerStep#1"):
        run()
    profiler.export_chrome_trace(str(path))
    trace = read_trace(path, BASIC_EVENTS | Events.PRODUCTS)
    assert trace.products is not None
    counted = count_operations(trace, trace.products)
    assert counted is not None
    return counted


def training(network: nn.Module, *shape: int, gradient: bool = True) -> Run:
    def run() -> None:
        image = torch.randn(*shape, requires_grad=gradient)
        network(image).sum().backward()

    return run


@pytest.mark.parametrize("recompute", [False, True], ids=["plain", "recomputed"])
def test_resnet_18_has_as_many_operations_as_pytorch_counts(recompute: bool, tmp_path: Path) -> None:
    """The image needs no gradient: the first convolution has one backward product instead of two."""
    run = training(ResNet18(recompute), 2, 3, 64, 64, gradient=False)
    counted = counted_in_trace(run, tmp_path / "rank0.json")
    assert counted.flops_per_step == counted_by_pytorch(run)
    assert set(counted.by_operator) == {"convolution", "convolution_backward", "mm", "addmm"}
    assert counted.not_counted == ()
    assert counted.is_covered


def test_resnet_18_of_imagenet_has_its_published_operations(tmp_path: Path) -> None:
    """1.81 billion multiplications a picture of 224 x 224 (arXiv 1512.03385, table 1)."""
    network = ResNet18().eval()

    def run() -> None:
        with torch.no_grad():
            network(torch.randn(1, 3, 224, 224))

    counted = counted_in_trace(run, tmp_path / "rank0.json")
    assert counted.flops_per_step == pytest.approx(2 * 1.81e9, rel=0.01)


CONVOLUTIONS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "strides": (nn.Conv2d(3, 8, 3, stride=2, padding=1), (2, 3, 17, 19)),
    "a line, apart": (nn.Conv1d(4, 8, 5, dilation=2), (2, 4, 33)),
    "a volume": (nn.Conv3d(2, 4, 3, padding="same"), (1, 2, 6, 7, 8)),
    "even": (nn.Conv2d(2, 4, 4, padding=(1, 2)), (1, 2, 16, 17)),
    "transposed": (nn.ConvTranspose2d(6, 4, 3, stride=2, output_padding=1), (2, 6, 9, 9)),
    "around": (nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), (1, 3, 8, 8)),
    "no batch": (nn.Conv2d(3, 4, 3), (3, 8, 8)),
}


@pytest.mark.parametrize("gradient", [True, False], ids=["both gradients", "one gradient"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_have_as_many_operations_as_pytorch_counts(name: str, gradient: bool, tmp_path: Path) -> None:
    network, shape = CONVOLUTIONS[name]
    run = training(network, *shape, gradient=gradient)
    assert counted_in_trace(run, tmp_path / "rank0.json").flops_per_step == counted_by_pytorch(run)


@pytest.mark.parametrize(
    ("network", "image"),
    [(nn.Conv2d(8, 16, 3, groups=4), (2, 8, 10, 10)), (nn.ConvTranspose2d(6, 4, 3, groups=2), (2, 6, 9, 9))],
    ids=["grouped", "grouped and transposed"],
)
def test_a_grouped_convolution_is_that_of_its_groups(
    network: nn.Conv2d, image: tuple[int, ...], tmp_path: Path
) -> None:
    """PyTorch's counter takes the weights' gradient as if there were one group."""
    batch, channels, *size = image
    groups = network.groups
    single = type(network)(channels // groups, network.out_channels // groups, 3)
    group = training(single, batch, channels // groups, *size)
    counted = counted_in_trace(training(network, *image), tmp_path / "rank0.json")
    assert counted.flops_per_step == groups * counted_by_pytorch(group)


@pytest.mark.parametrize("is_causal", [False, True])
def test_fused_attention_has_the_operations_of_its_two_products(is_causal: bool, tmp_path: Path) -> None:
    """PyTorch's counter does not know the fused kernel of CPUs: it counts the products that it stands for."""
    operands = [torch.randn(2, 4, length, 8, requires_grad=True) for length in (16, 24, 24)]

    def fused() -> None:
        attention(*operands, is_causal=is_causal).sum().backward()

    def written_out() -> None:
        query, key, value = operands
        ((query @ key.mT).softmax(-1) @ value).sum().backward()

    counted = counted_in_trace(fused, tmp_path / "rank0.json")
    assert counted.flops_per_step == counted_by_pytorch(written_out)


def attention(query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool) -> Tensor:
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return nn.functional.scaled_dot_product_attention(query, key, value, is_causal=is_causal)


def test_a_recurrent_layer_is_named_as_not_counted(tmp_path: Path) -> None:
    layer = nn.LSTM(4, 8)
    counted = counted_in_trace(lambda: layer(torch.randn(5, 2, 4))[0].sum().backward(), tmp_path / "rank0.json")
    assert [each.operator for each in counted.not_counted] == ["mkldnn_rnn_layer", "mkldnn_rnn_layer_backward"]
    assert counted.flops_per_step is None
    assert not counted.is_covered


B, S, H, D = 2, 32, 4, 16
ONE = 2 * B * H * S * S * 2 * D
DENSE, PACKED = (B, S, H, D), (B * S, H, D)
NONE, BOUNDS = (), (B + 1,)
LENGTHS = (str(S), str(S))


@pytest.mark.parametrize(
    ("operator", "shapes", "values", "flops"),
    [
        ("_scaled_dot_product_efficient_attention", ((B, H, S, D),) * 3, (), ONE),
        ("_scaled_dot_product_cudnn_attention", ((B, H, S, D),) * 3, (), ONE),
        ("_scaled_dot_product_efficient_attention_backward", ((B, H, S, D),) * 4, (), 2 * ONE),
        ("_flash_attention_forward", (DENSE,) * 3, (), ONE),
        ("_flash_attention_backward", (DENSE,) * 4, (), 2 * ONE),
        ("_flash_attention_forward", (PACKED,) * 3 + (BOUNDS,) * 2, ("",) * 5 + LENGTHS, ONE),
        ("_flash_attention_forward", (PACKED,) * 3 + (BOUNDS,) * 2, ("",) * 5 + ("31", "31"), None),
        ("_flash_attention_backward", (PACKED,) * 6 + (BOUNDS,) * 2, ("",) * 8 + LENGTHS, 2 * ONE),
        ("_efficient_attention_forward", (DENSE,) * 3, (), ONE),
        ("_efficient_attention_backward", (DENSE,) * 4, (), 2 * ONE),
        ("_cudnn_attention_forward", ((B, H, S, D),) * 3, (), ONE),
        ("_flash_attn_varlen_forward", (PACKED,) * 3 + (BOUNDS,) * 2, ("",) * 5 + LENGTHS, ONE),
        ("_flash_attn_varlen_backward", (PACKED,) * 9 + (BOUNDS,) * 2, ("",) * 11 + LENGTHS, 2 * ONE),
        ("FlashAttnFunc", (DENSE,) * 3, (), ONE),
        ("FlashAttnFuncBackward", (DENSE,), (), None),  # the gradient's shape alone
        ("flash_attn_3::fwd", (DENSE,) * 3, (), ONE),
        ("flash_attn_3::fwd", (PACKED,) * 3 + (NONE,) * 4 + (BOUNDS,) * 2, ("",) * 12 + LENGTHS, ONE),
        ("flash_attn_3::bwd", (DENSE,) * 4, (), 2 * ONE),
        ("aiter::_flash_attn_forward", (DENSE,) * 3, (), ONE),
        ("aiter::fmha_v3_fwd", (DENSE,) * 3, (), ONE),
        ("aiter::mha_bwd", (DENSE,) * 4, (), 2 * ONE),
        ("vllm::unified_attention_with_output", (PACKED,) * 4, (), None),
        ("_scaled_mm", ((16, 32), (32, 64)), (), 2 * 16 * 32 * 64),
        ("_scaled_grouped_mm", ((48, 32), (3, 32, 64)), (), 2 * 48 * 32 * 64),
        ("_int_mm", ((16, 32), (32, 64)), (), 2 * 16 * 32 * 64),
        # Transformer Engine's order of weight and input changed in its version 2.
        ("_Linear", ((64, 32), (4, 16, 32), (64,), ()), (), 2 * 4 * 16 * 32 * 64),
        ("_Linear", ((), (4, 16, 32), (64, 32), (64,)), (), 2 * 4 * 16 * 32 * 64),
        ("_LayerNormLinear", ((4, 16, 32), (32,), (32,), (64, 32)), (), 2 * 4 * 16 * 32 * 64),
        ("_GroupedLinear", ((48, 32), (), (64, 32), (64, 32), (64, 32)), (), 2 * 48 * 32 * 64),
        ("_LayerNormMLP", ((4, 16, 32), (32,), (), (256, 32), (256,), (32, 128)), (), 2 * 64 * 32 * (256 + 128)),
        ("vllm::moe_forward", ((5, 8), (5, 3)), (), None),
        ("convolution", ((1, 3, 8, 8), (4, 3, 3, 3)), (), None),  # strides are not stated
    ],
)  # fmt: skip
def test_operators_of_libraries(
    operator: str, shapes: tuple[tuple[int, ...], ...], values: tuple[str, ...], flops: int | None
) -> None:
    assert count_flops(Product(operator, shapes, (), values)) == flops


def test_two_elements_of_four_bits_share_an_element_of_the_shape() -> None:
    product = Product("_scaled_mm", ((16, 16), (16, 64)), ("c10::Float4_e2m1fn_x2",) * 2)
    assert count_flops(product) == 2 * 16 * 32 * 64
