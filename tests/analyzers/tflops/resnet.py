"""ResNet-18 (He et al. 2015, arXiv 1512.03385), written out for tests."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, 1, 1, bias=False),
            nn.BatchNorm2d(channels),
        )
        is_same = channels_in == channels and stride == 1
        shortcut = nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
        self.shortcut = nn.Identity() if is_same else nn.Sequential(*shortcut)

    def forward(self, image: Tensor) -> Tensor:
        return torch.relu(self.path(image) + self.shortcut(image))


class ResNet18(nn.Module):
    """Four pairs of blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        sizes = ((64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2))
        self.blocks = nn.ModuleList([Block(*size) for size in (*sizes, (512, 512, 1))])
        self.head = nn.Linear(512, 1000)

    def forward(self, image: Tensor) -> Tensor:
        image = self.stem(image)
        for block in self.blocks:
            image = block(image)
        return self.head(image.mean((2, 3)))
