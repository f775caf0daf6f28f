"""The list of log formats, each a module of ``formats``.

The order decides where a log fits several formats. The step time comes from the best source of the first format. The
framework is the first that a line identifies.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from perfscope.sources.joblog import formats
from perfscope.sources.joblog.log_format import LogFormat

# fmt: off
_MODULES = (
    "job", "megatron", "deepspeed",
    "nemo", "automodel", "verl", "torchtitan", "torchtune", "nanogpt", "llm_c", "modded_nanogpt", "litgpt", "olmo_core",
    "nanotron", "openmmlab", "fairseq", "open_clip", "mlperf", "swift", "trainer_files",
    "lightning", "hf_trainer",
)
# fmt: on

FORMATS: tuple[LogFormat[Any], ...] = tuple(import_module(f"{formats.__name__}.{module}").FORMAT for module in _MODULES)
