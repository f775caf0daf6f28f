"""The process beside training writes down in which order ranks end, and how, without being their parent."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

from perfscope.hooks.facts.startup import read_start_ns
from perfscope.wire import RankRecord, to_line
from tests.conftest import ROOT

CORONER = ROOT / "hooks" / "watch" / "coroner.py"


def start_rank(ranks: Path, rank: int, code: str, **fields: object) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", code])
    now = {"wall_ns": time.time_ns(), "monotonic_ns": time.monotonic_ns(), "python": "3", "host": socket.gethostname()}
    record = RankRecord(**{"rank": rank, "world_size": 3, "pid": process.pid, **now, **fields})  # type: ignore[arg-type]
    (ranks / f"{rank:05d}").mkdir(parents=True)
    (ranks / f"{rank:05d}" / "rank.json").write_bytes(to_line(record))
    return process


def deaths(output: bytes) -> list[tuple[int, int | None, int | None]]:
    records = [json.loads(line) for line in output.splitlines()]
    assert [record["wall_ns"] for record in records] == sorted(record["wall_ns"] for record in records)
    return [(record["rank"], record.get("exit_code"), record.get("signal")) for record in records]


def test_ends_are_written_in_their_order_with_codes_and_signals(tmp_path: Path) -> None:
    codes = ["import time; time.sleep(1.6)", "import time; time.sleep(0.8); raise SystemExit(3)"]
    codes.append("import time, os; time.sleep(1.2); os.kill(os.getpid(), 9)")
    ranks = [start_rank(tmp_path, rank, code) for rank, code in enumerate(codes)]
    watcher = subprocess.Popen([sys.executable, "-I", "-S", CORONER, tmp_path, "-", "1"], stdout=subprocess.PIPE)
    time.sleep(2.5)  # the parent has not asked yet how they ended
    for rank in ranks:
        rank.wait()
    output, _ = watcher.communicate(timeout=5)
    assert watcher.returncode == 0
    assert deaths(output) == [(1, 3, None), (2, None, 9), (0, 0, None)]


def test_another_hosts_ranks_and_reused_process_ids_are_not_its_own(tmp_path: Path) -> None:
    begun_ns = read_start_ns()
    assert begun_ns is not None
    ranks = [
        start_rank(tmp_path, 0, "import time; time.sleep(0.5); raise SystemExit(4)"),
        start_rank(tmp_path, 1, "import time; time.sleep(0.5)", host="elsewhere"),
        start_rank(tmp_path, 2, "import time; time.sleep(0.5)", started_ns=begun_ns - 10**12),
    ]
    (tmp_path / "00003").mkdir()
    (tmp_path / "00003" / "rank.json").write_bytes(b'{"rank": 3')
    output = subprocess.run(
        [sys.executable, "-I", "-S", CORONER, tmp_path, "-", "1"], stdout=subprocess.PIPE, timeout=10, check=True
    ).stdout
    for rank in ranks:
        rank.wait()
    assert deaths(output) == [(0, 4, None)]
