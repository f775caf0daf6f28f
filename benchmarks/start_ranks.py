"""Starts the ranks of a training as torchrun does, without the seconds that torchrun needs to import torch.

Run: ``python benchmarks/start_ranks.py [--share PERCENT,...] [--turn FILE] RANKS SCRIPT [ARGUMENTS...]``. When a rank
fails, the others get SIGTERM.

``--share`` gives each rank so many percent of the multiprocessors of a GPU, which holds where NVIDIA's multi-process
service runs. Where there are fewer GPUs than ranks they share them, and each is a host of its own for NCCL, which takes
one rank a device only; they talk through sockets. ``--turn`` lets trainings that were started together make their
imports together, and train one after the other: the store, which each rank waits for when it makes its process group,
is opened when the file's lock is free.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

_POLL_S = 0.1
_PORTS = range(20_000, 32_000)
#: A training that hangs gives its turn to the next one.
_LONGEST_TURN_S = 100


def end_all(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    for rank in ranks:
        if rank.poll() is None:
            rank.terminate()


def list_gpus(environment: Mapping[str, str]) -> list[str]:
    """The GPUs of this machine, as CUDA_VISIBLE_DEVICES names them."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [word for word in visible.split(",") if word]
    return [str(index) for index, _ in enumerate(Path("/dev").glob("nvidia[0-9]*"))]


def rank_environment(rank: int, ranks: int, shares: Sequence[int], gpus: Sequence[str]) -> dict[str, str]:
    """What tells a process its place: ranks of one host with a GPU each, or hosts that share the GPUs; its share."""
    place = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks)}
    if not shares:
        return place
    device = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(shares[rank])}
    if len(gpus) >= ranks:
        return place | device
    alone = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "NCCL_HOSTID": f"host{rank}", "NCCL_IB_DISABLE": "1"}
    sockets = {"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
    if gpus:
        device["CUDA_VISIBLE_DEVICES"] = gpus[rank * len(gpus) // ranks]
    return place | alone | sockets | device


def start(
    count: int, words: Sequence[str], shares: Sequence[int], more: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Start each rank."""
    gpus = list_gpus(os.environ)
    for rank in range(count):
        place = rank_environment(rank, count, shares, gpus)
        yield subprocess.Popen([sys.executable, *words], env={**os.environ, **more, **place})


def take_turn(file: IO[bytes], ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait until no other training has the turn, or a rank has ended."""
    while all(rank.poll() is None for rank in ranks):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_POLL_S)
        else:
            return


def open_store(listener: socket.socket) -> object:
    """The store of the process group, behind a port to which ranks have connected before."""
    from torch.distributed import TCPStore  # only where ranks do not make it themselves

    port = listener.getsockname()[1]
    return TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


def wait_for(ranks: Sequence[subprocess.Popen[bytes]], longest_s: float) -> int:
    """Wait until all ranks have ended, or one has failed, or the time is over; returns the largest exit code."""
    end = time.monotonic() + longest_s
    while any(rank.poll() is None for rank in ranks):
        if any(rank.poll() for rank in ranks) or time.monotonic() > end:
            end_all(ranks)
            break
        time.sleep(_POLL_S)
    return max(abs(rank.wait()) for rank in ranks)


def listen(backlog: int) -> socket.socket:
    """A server at a port that the kernel gives to no connection: other trainings that start open many."""
    for port in random.sample(_PORTS, len(_PORTS)):
        with contextlib.suppress(OSError):
            return socket.create_server(("127.0.0.1", port), backlog=backlog)
    raise OSError("no port is free")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--share", default="", metavar="PERCENT,...", help="of a GPU, for each rank")
    parser.add_argument("--turn", type=Path, help="a file whose lock is held while ranks train")
    parser.add_argument("count", type=int)
    parser.add_argument("words", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    shares = [int(word) for word in arguments.share.split(",") if word]
    if shares and len(shares) < arguments.count:
        parser.error(f"{arguments.count} ranks, and shares for {len(shares)}")
    listener = listen(backlog=4 * arguments.count)
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(listener.getsockname()[1])}
    if arguments.turn is None:
        listener.close()
    else:
        world |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    ranks: list[subprocess.Popen[bytes]] = []
    signal.signal(signal.SIGTERM, lambda *_: end_all(ranks))
    ranks += start(arguments.count, arguments.words, shares, world)
    if arguments.turn is None:
        return wait_for(ranks, float("inf"))
    with arguments.turn.open("ab") as file:
        take_turn(file, ranks)
        _store = open_store(listener)
        return wait_for(ranks, _LONGEST_TURN_S)


if __name__ == "__main__":
    sys.exit(main())
