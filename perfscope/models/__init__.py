"""Dimensions of models, their parameters, conventions for counting operations, and peak rates of GPUs."""
