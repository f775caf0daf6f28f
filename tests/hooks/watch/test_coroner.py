"""The process beside training writes down in which order ranks end, and how, without being their parent."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from pathlib import Path

from perfscope.hooks.facts.launched_rank import read_start_ns
from perfscope.wire.records import RankRecord, to_line
from tests.conftest import ROOT

LONGEST_S = 60
CORONER = ROOT / "hooks" / "watch" / "coroner.py"


def start_rank(ranks: Path, rank: int, code: str, **fields: object) -> subprocess.Popen[bytes]:
    """A process that does what the code says once its input is closed."""
    command = [sys.executable, "-I", "-S", "-c", f"import sys; sys.stdin.read(); {code}"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    now = {"wall_ns": time.time_ns(), "monotonic_ns": time.monotonic_ns(), "python": "3", "host": socket.gethostname()}
    record = RankRecord(**{"rank": rank, "world_size": 3, "pid": process.pid, **now, **fields})  # type: ignore[arg-type]
    (ranks / f"{rank:05d}").mkdir(parents=True)
    (ranks / f"{rank:05d}" / "rank.json").write_bytes(to_line(record))
    return process


def end(rank: subprocess.Popen[bytes]) -> None:
    assert rank.stdin is not None
    rank.stdin.close()


def start_watcher(ranks: Path, *watched: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    """The watcher, once it holds a descriptor of each of these processes."""
    watcher = subprocess.Popen([sys.executable, "-I", "-S", CORONER, ranks, "-", "999999999"], stdout=subprocess.PIPE)
    until_s = time.monotonic() + LONGEST_S
    while time.monotonic() < until_s and not {rank.pid for rank in watched} <= descriptors(watcher.pid):
        time.sleep(0.02)
    return watcher


def descriptors(pid: int) -> set[int]:
    """The processes that a process has descriptors of."""
    texts = []
    for file in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            texts.append(file.read_text())
    return {int(line.split()[1]) for text in texts for line in text.splitlines() if line.startswith("Pid:")}


def deaths(output: bytes) -> list[tuple[int, int | None, int | None]]:
    records = [json.loads(line) for line in output.splitlines()]
    assert [record["wall_ns"] for record in records] == sorted(record["wall_ns"] for record in records)
    return [(record["rank"], record.get("exit_code"), record.get("signal")) for record in records]


def test_ends_are_written_in_their_order_with_codes_and_signals(tmp_path: Path) -> None:
    codes = ["pass", "raise SystemExit(3)", "import os; os.kill(os.getpid(), 9)"]
    ranks = [start_rank(tmp_path, rank, code) for rank, code in enumerate(codes)]
    watcher = start_watcher(tmp_path, *ranks)
    assert watcher.stdout is not None
    output = b""
    for rank in (1, 2, 0):
        end(ranks[rank])
        output += watcher.stdout.readline()  # the parent has not asked yet how it ended
    for process in ranks:
        process.wait()
    output += watcher.communicate(timeout=LONGEST_S)[0]
    assert watcher.returncode == 0
    assert deaths(output) == [(1, 3, None), (2, None, 9), (0, 0, None)]


def test_another_hosts_ranks_and_reused_process_ids_are_not_its_own(tmp_path: Path) -> None:
    begun_ns = read_start_ns()
    assert begun_ns is not None
    ranks = [
        start_rank(tmp_path, 0, "raise SystemExit(4)"),
        start_rank(tmp_path, 1, "pass", host="elsewhere"),
        start_rank(tmp_path, 2, "pass", started_ns=begun_ns - 10**12),
    ]
    (tmp_path / "00003").mkdir()
    (tmp_path / "00003" / "rank.json").write_bytes(b'{"rank": 3')
    watcher = start_watcher(tmp_path, ranks[0])
    for rank in ranks:
        end(rank)
    output, _ = watcher.communicate(timeout=LONGEST_S)
    for rank in ranks:
        rank.wait()
    assert watcher.returncode == 0
    assert deaths(output) == [(0, 4, None)]
