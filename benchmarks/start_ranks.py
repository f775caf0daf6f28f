"""Starts the ranks of a training as torchrun does, without the seconds that torchrun needs to import torch.

Run: ``python benchmarks/start_ranks.py RANKS SCRIPT [ARGUMENTS...]``. When a rank fails, the others get SIGTERM.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence


def end_all(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    for rank in ranks:
        if rank.poll() is None:
            rank.terminate()


def main() -> int:
    count, words = int(sys.argv[1]), sys.argv[2:]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    world = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(
            [sys.executable, *words], env={**os.environ, **world, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        )
        for rank in range(count)
    ]
    signal.signal(signal.SIGTERM, lambda *_: end_all(ranks))
    while any(rank.poll() is None for rank in ranks):
        if any(rank.poll() for rank in ranks):
            end_all(ranks)
            break
        time.sleep(0.1)
    return max(abs(rank.wait()) for rank in ranks)


if __name__ == "__main__":
    sys.exit(main())
