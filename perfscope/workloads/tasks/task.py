"""What is trained: a model as a list of layers, its batches and its loss.

``--model`` takes ``resnet50``, ``gpt2-small``, ``gpt:LAYERSxHIDDENxSEQUENCE`` or ``FILE.py:FUNCTION``. The function
returns a module; pipelines can cut it where it is an ``nn.Sequential``. Beside it the file may have
``batch(step, samples)``, which returns inputs and targets, and ``loss(outputs, targets)``.
"""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from perfscope.workloads.gpt import INITIAL_STD, Block, GptConfig
from perfscope.workloads.tasks.data import Batches, image_files, synthetic_images, synthetic_tokens, token_file
from perfscope.workloads.tasks.resnet import Bottleneck, resnet50

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]

#: GPT-2's smallest model, with a vocabulary that a tensor-parallel size divides.
_GPT2_SMALL = GptConfig(layers=12, hidden=768, heads=12, vocabulary=50304, seq_len=1024)
_FAST, _SLOW = 1e-3, 1e-4  # learning rates with which the loss falls from the first steps on
#: How tensor parallelism splits the products of a block: by columns (outputs) or by rows (inputs).
GPT_SPLITS = {"qkv": "columns", "projection": "rows", "mlp.0": "columns", "mlp.2": "rows"}


@dataclass(frozen=True, slots=True)
class TrainingTask:
    """A model, its data and its loss.

    ``layers`` builds the same weights after the same seed. ``block`` is the layer that repeats: recomputed and sharded
    each by itself. ``splits`` is how tensor parallelism splits the products of a block. ``tokens`` are of a sample.
    """

    name: str
    layers: Callable[[], list[nn.Module]]
    batch: Batches
    loss: Loss
    block: type[nn.Module] | None
    splits: Mapping[str, str]
    tokens: int | None
    lr: float
    is_classified: bool


class Embedding(nn.Module):
    """Maps tokens of (batch, positions) to states of (batch, positions, hidden)."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.hidden)
        self.positions = nn.Embedding(config.seq_len, config.hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        """Embed tokens and their positions."""
        states: Tensor = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return states


def gpt_layers(config: GptConfig) -> list[nn.Module]:
    """The embedding, the blocks, and the logits with a matrix of their own, because stages cannot share one."""
    logits = nn.Sequential(nn.LayerNorm(config.hidden), nn.Linear(config.hidden, config.vocabulary, bias=False))
    layers = [Embedding(config), *(Block(config) for _ in range(config.layers)), logits]
    for parameter in nn.ModuleList(layers).parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=INITIAL_STD)
    return layers


def make_task(model: str, data: Path | None, image_size: int) -> TrainingTask:
    """The task of ``--model`` and ``--data``; ValueError where the model is none of those that are known."""
    if model == "resnet50":
        batch = image_files(data) if data else synthetic_images(image_size)
        channels = batch(0, 1)[0].shape[1]
        return TrainingTask(
            model,
            lambda: resnet50(channels),
            batch,
            cross_entropy,
            Bottleneck,
            {},
            None,
            _SLOW,
            is_classified=True,
        )
    if model.rpartition(":")[0].endswith(".py"):
        return _load_task(model, data, image_size)
    config = _GPT2_SMALL if model == "gpt2-small" else _parse_gpt(model)
    tokens = (config.vocabulary, config.seq_len)
    batch = token_file(data, *tokens) if data else synthetic_tokens(*tokens)
    return TrainingTask(
        model,
        lambda: gpt_layers(config),
        batch,
        cross_entropy,
        Block,
        GPT_SPLITS,
        config.seq_len,
        _FAST,
        is_classified=False,
    )


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean cross entropy of (..., classes) and (...)."""
    return functional.cross_entropy(outputs.flatten(0, -2).float(), targets.flatten())


def _parse_gpt(model: str) -> GptConfig:
    dimensions = re.fullmatch(r"gpt:([1-9]\d*)x([1-9]\d*)x([1-9]\d*)(?:x([1-9]\d*))?", model)
    if dimensions is None:
        raise ValueError(f"{model!r} is not resnet50, gpt2-small, gpt:LAYERSxHIDDENxSEQUENCE or FILE.py:FUNCTION")
    layers, hidden, seq_len, vocabulary = (int(number or 1024) for number in dimensions.groups())
    heads = max(2, hidden // 64)
    if hidden % heads:
        raise ValueError(f"{model}: the hidden size {hidden} is not divisible by {heads} heads")
    return GptConfig(layers, hidden, heads, vocabulary, seq_len)


def _load_task(model: str, data: Path | None, image_size: int) -> TrainingTask:
    """The task of a user's file, which runs; what it raises is the user's to see."""
    file, _, function = model.rpartition(":")
    names = runpy.run_path(file, run_name="perfscope_model")
    if not callable(names.get(function)):
        raise TypeError(f"{file} has no function {function!r}")

    def layers() -> list[nn.Module]:
        module = names[function]()
        if not isinstance(module, nn.Module):
            raise TypeError(f"{model} returned {type(module).__name__}, not a module")
        return list(module) if isinstance(module, nn.Sequential) else [module]

    embedding = next((part for part in nn.ModuleList(layers()).modules() if isinstance(part, nn.Embedding)), None)
    if "batch" in names:
        batch = names["batch"]
    elif embedding is not None:
        vocabulary = embedding.num_embeddings
        batch = token_file(data, vocabulary, 128) if data else synthetic_tokens(vocabulary, 128)
    else:
        batch = image_files(data) if data else synthetic_images(image_size)
    inputs, targets = batch(0, 1)
    is_classified = targets.dim() == 1 and not targets.is_floating_point()
    lr = _SLOW if inputs.is_floating_point() else _FAST
    tokens = None if is_classified or inputs.is_floating_point() else int(inputs.shape[1])
    return TrainingTask(
        model, layers, batch, names.get("loss", cross_entropy), None, {}, tokens, lr, is_classified=is_classified
    )
