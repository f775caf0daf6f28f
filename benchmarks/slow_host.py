"""Runs a training script whose host is slow on one rank: it waits before each forward pass.

Run: ``python benchmarks/slow_host.py RANK MILLISECONDS SCRIPT [ARGUMENTS...]``, below a launcher.
"""

from __future__ import annotations

import os
import runpy
import sys
import time

from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

#: The class of a stage in ``gpt_pipeline.py``, and of a whole model in ``gpt_torch.py``.
_MODELS = ("Part", "DistributedDataParallel")


def main() -> None:
    rank, pause_ms, script = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]

    def wait(module: nn.Module, _inputs: object) -> None:
        if type(module).__name__ in _MODELS:
            time.sleep(pause_ms / 1e3)

    if int(os.environ["RANK"]) == rank:
        register_module_forward_pre_hook(wait)
    sys.argv = sys.argv[3:]
    sys.path[0] = os.path.dirname(os.path.abspath(script))  # noqa: PTH100, PTH120 - as Python itself does
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
