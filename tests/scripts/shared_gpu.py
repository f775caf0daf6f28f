"""Two ranks on one GPU, each with a part of its multiprocessors by NVIDIA's Multi-Process Service (MPS), over NCCL.

NCCL takes each rank for a host of its own, and exchanges by sockets of the loopback: a model is smaller than on two
GPUs, or the exchange is all that a step consists of. A part is a cap: two ranks of 50 % hardly disturb each other, and
what runs in a rank's own process stays in that rank's part.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import torch

from perfscope.workloads.gpt import GptConfig

#: Whether both ranks use the first GPU; its MPS is running.
IS_SHARED = bool(os.environ.get("SHARE"))
#: Percentage of the multiprocessors that each rank has.
HALF = 50
#: Launches take longer than the exchange with the first model, and kernels longer than it with the second.
SMALL = GptConfig(layers=8, hidden=256, heads=4, vocabulary=4096, seq_len=513)
LARGE = GptConfig(layers=4, hidden=1024, heads=16, vocabulary=4096, seq_len=513)
#: So many products of matrices of 4096 rows keep half of an H200 busy for 10 ms.
_BURST = 31
_ROWS = 4096
_PERIOD_S = 0.01


def take_part(rank: int, percentage: int) -> None:
    """Let this process be a host of its own to NCCL, with a share of the GPU; before anything of CUDA begins."""
    os.environ.update(
        LOCAL_RANK="0",
        NCCL_HOSTID=f"host{rank}",
        NCCL_SOCKET_IFNAME="lo",
        NCCL_IB_DISABLE="1",
        CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=str(percentage),
    )


def use_part(share: float, device: torch.device, is_over: threading.Event) -> None:
    """Multiply matrices in this rank's part of the GPU for a share of the time, on a stream of their own.

    A burst is one kernel: its launch takes the interpreter from the thread that trains once.
    """
    with torch.cuda.stream(torch.cuda.Stream(device)):
        matrix = torch.ones(_ROWS, _ROWS, dtype=torch.bfloat16, device=device)
        burst = torch.ones(round(_BURST * share) * _ROWS, _ROWS, dtype=torch.bfloat16, device=device)
        product = torch.empty_like(burst)
        while not is_over.is_set():
            torch.mm(burst, matrix, out=product)
            ended = torch.cuda.Event()
            ended.record()
            while not ended.query():
                time.sleep(0.001)
            time.sleep(_PERIOD_S * (1 - share))


def bind_training(processor: int, others: set[int]) -> None:
    """Bind the thread that trains and those that launch backward passes; NCCL's, which never sleep, run elsewhere."""
    for task in Path("/proc/self/task").iterdir():
        trains = int(task.name) == os.getpid() or (task / "comm").read_text().startswith("pt_autograd")
        os.sched_setaffinity(int(task.name), {processor} if trains else others)
