"""Functions with the names and inputs of Transformer Engine's, whose products are no operators of torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def multiply(first: Tensor, second: Tensor) -> Tensor:
    """The product over the last dimension of one and the first of the other, by NumPy."""
    return torch.from_numpy(first.detach().numpy() @ second.detach().numpy())


def rows(tensor: Tensor) -> Tensor:
    return tensor.detach().reshape(-1, tensor.shape[-1])


class _Linear(torch.autograd.Function):
    """Weight, input, bias and numbers, as version 2 has them."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, states: Tensor, bias: None, is_fp8: bool) -> Tensor:
        ctx.save_for_backward(weight, states)
        return multiply(states, weight.T)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        weight, states = ctx.saved_tensors
        return multiply(rows(gradient).T, rows(states)), multiply(gradient, weight), None, None


class _LayerNormMLP(torch.autograd.Function):
    """Input, weight and bias of the norm, the two weights with their biases."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, norm: Tensor, _: None, inward: Tensor, bias: None, outward: Tensor) -> Tensor:
        ctx.save_for_backward(states, norm, inward, outward)
        return multiply(multiply(states, inward.T), outward.T)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        states, norm, inward, outward = ctx.saved_tensors
        middle, inner = multiply(states, inward.T), multiply(gradient, outward)
        weights = multiply(rows(inner).T, rows(states)), multiply(rows(gradient).T, rows(middle))
        return multiply(inner, inward), torch.zeros_like(norm), None, weights[0], None, weights[1]


class Layer(nn.Module):
    """A linear layer and an MLP by these functions."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.weight, self.norm = nn.Parameter(torch.randn(hidden, hidden)), nn.Parameter(torch.ones(hidden))
        self.inward, self.outward = (nn.Parameter(torch.randn(sizes)) for sizes in ((inner, hidden), (hidden, inner)))

    def forward(self, states: Tensor) -> Tensor:
        states = _Linear.apply(self.weight, states, None, False)
        return _LayerNormMLP.apply(states, self.norm, None, self.inward, None, self.outward)


class Twin(nn.Module):
    """The same products as operators of torch."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        sizes = ((hidden, hidden), (hidden, inner), (inner, hidden))
        self.layers = nn.Sequential(*(nn.Linear(*size, bias=False) for size in sizes))

    def forward(self, states: Tensor) -> Tensor:
        output: Tensor = self.layers(states)
        return output
