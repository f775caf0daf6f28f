"""Runs a training script of which one rank stalls, or skips a collective: ``postmortem`` has to say which, and why.

Run: ``python benchmarks/stop_script.py RANK host|skip PASS SCRIPT [ARGUMENTS...]``, below a launcher. The fault is at
the forward pass of that number of a Megatron-core model: the host waits, or an all-reduce with others is left out.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from typing import Any

from torch import Tensor, distributed, nn
from torch.nn.modules.module import register_module_forward_pre_hook

_MODEL = "GPTModel"
_LONG_S = 600


class Nothing:
    """The work of a collective that was not called."""

    def wait(self) -> None:
        """Return at once."""


def skip_all_reduce() -> None:
    """Leave out the next all-reduce in which another rank takes part."""
    called = distributed.all_reduce

    def skip(tensor: Tensor, *rest: object, group: Any = None, async_op: bool = False, **others: Any) -> object:  # noqa: ANN401 - as torch
        members = group if group is not None else next((word for word in rest if hasattr(word, "size")), None)
        if distributed.get_world_size(members) == 1:
            return called(tensor, *rest, group=group, async_op=async_op, **others)
        distributed.all_reduce = called
        return Nothing() if async_op else None

    distributed.all_reduce = skip


def main() -> None:
    rank, fault, at = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    script, passes = sys.argv[4], 0

    def stop(module: nn.Module, _inputs: object) -> None:
        nonlocal passes
        if type(module).__name__ == _MODEL:
            passes += 1
            if passes == at and fault == "host":
                time.sleep(_LONG_S)
            elif passes == at:
                skip_all_reduce()

    if int(os.environ["RANK"]) == rank:
        register_module_forward_pre_hook(stop)
    sys.argv = sys.argv[4:]
    sys.path[0] = os.path.dirname(os.path.abspath(script))  # noqa: PTH100, PTH120 - as Python itself does
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
