"""ResNet-50 (He et al. 2015) for images of any size, as a list of layers that a pipeline can cut anywhere.

Each block begins as the identity (Goyal et al. 2017, arXiv 1706.02677, section 5.1): the loss falls from the first
step.
"""

from __future__ import annotations

from torch import Tensor, nn

_STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # width, blocks, stride of the first block
_EXPANSION = 4


class Bottleneck(nn.Module):
    """Three convolutions beside a skip connection."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            *_convolve(channels, width, 1),
            nn.ReLU(),
            *_convolve(width, width, 3, stride),
            nn.ReLU(),
            *_convolve(width, _EXPANSION * width, 1),
        )
        nn.init.zeros_(self.convolutions[-1].weight)
        changes_shape = stride > 1 or channels != _EXPANSION * width
        skip = _convolve(channels, _EXPANSION * width, 1, stride) if changes_shape else ()
        self.skip = nn.Sequential(*skip)

    def forward(self, images: Tensor) -> Tensor:
        """Map (batch, channels, height, width) to 4 x width channels."""
        states: Tensor = self.convolutions(images) + self.skip(images)
        return states.relu()


def resnet50(channels: int = 1, classes: int = 10) -> list[nn.Module]:
    """The stem, 16 blocks and the classifier; images with other than three channels are mapped to three first."""
    adapt = [] if channels == 3 else [nn.Conv2d(channels, 3, 1)]  # noqa: PLR2004  # red, green, blue
    stem = nn.Sequential(*adapt, *_convolve(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    blocks: list[nn.Module] = []
    width_before = 64
    for width, count, first_stride in _STAGES:
        for block in range(count):
            blocks.append(Bottleneck(width_before, width, first_stride if block == 0 else 1))
            width_before = _EXPANSION * width
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width_before, classes))
    return [stem, *blocks, head]


def _convolve(channels: int, width: int, size: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(channels, width, size, stride, size // 2, bias=False), nn.BatchNorm2d(width)
