"""Batches: synthetic ones that are the same in every run and can be learned, or the samples of files.

Every process makes the whole batch and takes its share, so that strategies see the same samples.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

#: Makes the inputs and targets of a step, from 0, of so many samples.
Batches: TypeAlias = Callable[[int, int], tuple[Tensor, Tensor]]

_CLASSES = 10
_IDX_HEADERS = {"images": 16, "labels": 8}


def synthetic_images(size: int) -> Batches:
    """Images of one channel, shaped as MNIST's: a pattern for each of ten classes, in noise."""
    patterns = torch.randn(_CLASSES, 1, size, size, generator=torch.Generator().manual_seed(1))

    def batch(step: int, samples: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(1000 + step)
        labels = torch.randint(_CLASSES, (samples,), generator=generator)
        return patterns[labels] + torch.randn(samples, 1, size, size, generator=generator), labels

    return batch


def synthetic_tokens(vocabulary: int, seq_len: int) -> Batches:
    """Tokens as frequent as words are (Zipf), where every second token follows from the one before it."""
    frequency = 1.0 / torch.arange(1, vocabulary + 1, dtype=torch.float64)
    cumulated = (frequency / frequency.sum()).cumsum(0)

    def batch(step: int, samples: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(2000 + step)
        drawn = torch.rand(samples, seq_len + 1, generator=generator, dtype=torch.float64)
        tokens = torch.searchsorted(cumulated, drawn).clamp_(max=vocabulary - 1)
        tokens[:, 1::2] = (7 * tokens[:, :-1:2] + 3) % vocabulary
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    return batch


def image_files(path: Path) -> Batches:
    """Images and labels of MNIST's idx files in a folder, or of an .npz file; ValueError where there are none."""
    if path.suffix == ".npz":
        arrays = np.load(path, allow_pickle=False)
        pixels, labels = arrays["images"], arrays["labels"]
    else:
        pixels, labels = _read_idx(path, "images"), _read_idx(path, "labels")
        side = int((len(pixels) // len(labels)) ** 0.5)
        pixels = pixels.reshape(-1, side, side)
    images = torch.from_numpy(pixels.astype(np.float32)).div_(np.iinfo(np.uint8).max)
    images = images[:, None] if images.dim() == 3 else images  # noqa: PLR2004  # (images, height, width)
    targets = torch.from_numpy(labels.astype(np.int64))

    def batch(step: int, samples: int) -> tuple[Tensor, Tensor]:
        chosen = torch.randint(len(targets), (samples,), generator=torch.Generator().manual_seed(3000 + step))
        return images[chosen], targets[chosen]

    return batch


def token_file(path: Path, vocabulary: int, seq_len: int) -> Batches:
    """Sequences of a file: .bin (16-bit tokens, as nanoGPT writes), .npy, or any text, whose bytes are the tokens.

    Raises ValueError where it is shorter than a sequence, or has a token beyond the vocabulary.
    """
    if path.suffix == ".npy":
        stream = np.load(path, mmap_mode="r", allow_pickle=False).reshape(-1)
    else:
        stream = np.fromfile(path, np.uint16 if path.suffix == ".bin" else np.uint8)
    if len(stream) <= seq_len + 1:
        raise ValueError(f"{path} has {len(stream)} tokens, fewer than a sequence of {seq_len + 1}")
    if (largest := int(stream.max())) >= vocabulary:
        raise ValueError(f"{path} has the token {largest}, beyond the vocabulary of {vocabulary}")

    def batch(step: int, samples: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(4000 + step)
        starts = torch.randint(len(stream) - seq_len - 1, (samples,), generator=generator).tolist()
        rows = np.stack([stream[start : start + seq_len + 1].astype(np.int64) for start in starts])
        tokens = torch.from_numpy(rows)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    return batch


def _read_idx(folder: Path, kind: str) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    files = sorted(folder.glob(f"train-{kind}*")) if folder.is_dir() else []
    if not files:
        raise ValueError(f"{folder} has no train-{kind}-idx file of MNIST, and is no .npz file")
    content = files[0].read_bytes()
    content = gzip.decompress(content) if files[0].suffix == ".gz" else content
    return np.frombuffer(content, np.uint8, offset=_IDX_HEADERS[kind])
