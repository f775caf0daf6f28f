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

_POLL_S = 0.1


def start(count: int, words: list[str]) -> list[subprocess.Popen[bytes]]:
    """Start each rank."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.getsockname()[1])}
    world |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    places = ({"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count))
    return [subprocess.Popen([sys.executable, *words], env={**os.environ, **world, **place}) for place in places]


def main() -> int:
    """Wait until all ranks have ended, or one has failed; the largest exit code."""
    ranks = start(int(sys.argv[1]), sys.argv[2:])

    def end_all(*_: object) -> None:
        for rank in ranks:
            if rank.poll() is None:
                rank.terminate()

    signal.signal(signal.SIGTERM, end_all)
    while any(rank.poll() is None for rank in ranks):
        if any(rank.poll() for rank in ranks):
            end_all()
            break
        time.sleep(_POLL_S)
    return max(abs(rank.wait()) for rank in ranks)


if __name__ == "__main__":
    sys.exit(main())
