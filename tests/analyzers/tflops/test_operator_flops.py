"""Operations of operators: against PyTorch's counter on real networks, and by hand for libraries that run on GPUs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.profiler import profile, record_function
from torch.utils.flop_counter import FlopCounterMode

from perfscope.analyzers.tflops.operation_counts import TracedOperations, count_operations
from perfscope.analyzers.tflops.operator_rules import count_flops
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.products import Product
from perfscope.tables.trace import BASIC_EVENTS, Events
from perfscope.workloads.tasks.resnet import resnet50

Run = Callable[[], object]


def counted_by_pytorch(run: Run) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())


def counted_in_trace(run: Run, path: Path) -> TracedOperations:
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


def test_resnet_50_has_as_many_operations_as_pytorch_counts(tmp_path: Path) -> None:
    """The image needs no gradient: the first convolution has one backward product instead of two."""
    run = training(nn.Sequential(*resnet50(3, 1000)), 2, 3, 64, 64, gradient=False)
    counted = counted_in_trace(run, tmp_path / "rank0.json")
    assert counted.flops_per_step == counted_by_pytorch(run)
    assert set(counted.by_operator) == {"convolution", "convolution_backward", "mm", "addmm"}
    assert counted.not_counted == ()
    assert counted.is_covered


CONVOLUTIONS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "strides": (nn.Conv2d(3, 8, 3, stride=2, padding=1), (2, 3, 17, 19)),
    "dilated": (nn.Conv2d(3, 8, 3, padding=2, dilation=(2, 1)), (2, 3, 17, 19)),
    "a volume": (nn.Conv3d(2, 4, 3, padding="same"), (1, 2, 6, 7, 8)),
    "transposed": (nn.ConvTranspose2d(6, 4, 3, stride=2, output_padding=1), (2, 6, 9, 9)),
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


B, S, H, D = 2, 32, 4, 16
ONE = 2 * B * H * S * S * 2 * D
DENSE, PACKED = (B, S, H, D), (B * S, H, D)


@pytest.mark.parametrize(
    ("operator", "shapes", "flops"),
    [
        ("_scaled_dot_product_efficient_attention", ((B, H, S, D),) * 3, ONE),
        ("_scaled_dot_product_efficient_attention_backward", ((B, H, S, D),) * 4, 2 * ONE),
        ("_flash_attention_forward", (DENSE,) * 3, ONE),
        ("_flash_attention_backward", (DENSE,) * 4, 2 * ONE),
        ("_efficient_attention_forward", (*(DENSE,) * 3, (), (), ()), ONE),
        ("_efficient_attention_forward", (*((1, B * S, H, D),) * 3, (), (B + 1,), (B + 1,)), None),  # packed sequences
        ("_efficient_attention_backward", (*((1, B * S, H, D),) * 4, (), DENSE, (B + 1,), (B + 1,)), None),
        ("_cudnn_attention_forward", ((B, H, S, D),) * 3, ONE),
        ("FlashAttnFunc", (DENSE,) * 3, ONE),
        ("flash_attn_3::bwd", (DENSE,) * 4, 2 * ONE),
        ("aiter::fmha_v3_fwd", (DENSE,) * 3, ONE),
        ("aiter::mha_bwd", (DENSE,) * 4, 2 * ONE),
        ("_flash_attn_varlen_forward", (PACKED,) * 3, None),  # lengths of the sequences are not stated
        ("vllm::unified_attention_with_output", (PACKED,) * 4, None),
        ("mm", ((2, 3), (3, 5)), 2 * 2 * 3 * 5),
        ("mm", ((), ()), None),
        ("addmm", ((5,), (2, 3), (3, 5)), 2 * 2 * 3 * 5),
        ("baddbmm", ((7, 2, 5), (7, 2, 3), (7, 3, 5)), 7 * 2 * 2 * 3 * 5),
        ("_grouped_mm", ((6, 3), (4, 3, 5), (4,)), 2 * 6 * 3 * 5),  # tokens of 4 experts, one weight each
        ("_grouped_mm", ((3, 6), (6, 5), (4,)), 2 * 3 * 6 * 5),  # its weights' gradients
        ("_scaled_mm", ((16, 32), (32, 64)), 2 * 16 * 32 * 64),
        # Transformer Engine's order of weight and input changed in its version 2.
        ("_Linear", ((64, 32), (4, 16, 32), (64,), ()), 2 * 4 * 16 * 32 * 64),
        ("_Linear", ((), (4, 16, 32), (64, 32), (64,)), 2 * 4 * 16 * 32 * 64),
        ("_LayerNormLinear", ((4, 16, 32), (32,), (32,), (64, 32)), 2 * 4 * 16 * 32 * 64),
        ("_GroupedLinear", ((48, 32), (), (64, 32), (64, 32), (64, 32)), 2 * 48 * 32 * 64),
        ("vllm::moe_forward", ((5, 8), (5, 3)), None),
        ("convolution", ((1, 3, 8, 8), (4, 3, 3, 3)), None),  # strides are not stated
    ],
)  # fmt: skip
def test_operators_of_libraries(operator: str, shapes: tuple[tuple[int, ...], ...], flops: int | None) -> None:
    assert count_flops(Product(operator, shapes)) == flops
