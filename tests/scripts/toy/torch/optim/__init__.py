"""Optimizers."""

from torch.optim.optimizer import SGD as SGD
