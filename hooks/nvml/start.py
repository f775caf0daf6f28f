"""Starts one NVML sampler a node, which ends with the rank that started it."""

from __future__ import annotations

import os

from perfscope import wire
from perfscope.hooks.config import Config
from perfscope.hooks.side_process import start_once_a_node


def start_sampler(config: Config) -> None:
    """Start the sampler, unless another rank of this node has started it; after a failure the run has no samples."""
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sampler.py")
    arguments = (str(config.nvml_path), str(config.nvml_hz), str(os.getpid()))
    start_once_a_node("nvml", config.run_dir, os.path.join(config.run_dir, wire.NVML_FOLDER), script, arguments)
