"""Waits of the training thread are seen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import environment

pytestmark = pytest.mark.slow
SCRIPT = """
import sys, threading
import torch, torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed import distributed_c10d as c10d
from perfscope.hooks.timers.exchanges import ExchangeTimer, to_waits

dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
pair = dist.new_group([0])
timer = ExchangeTimer()
timer.begin(threading.get_ident(), -1)
assert not timer.is_in_use, "one rank waits for nobody"
c10d.get_world_size = lambda: 2
timer.begin(threading.get_ident(), -1)
dist.all_reduce(torch.ones(2), async_op=True).wait()
dist.all_reduce(torch.ones(3), group=pair, async_op=True).wait()
assert to_waits(timer.take()).collectives_ns > 0
assert functional.all_reduce(torch.ones(4), "sum", pair).tolist() == [1.0] * 4
waits = to_waits(timer.take())
assert waits.collectives_ns > 0 and waits.transfers_ns == 0
thread = threading.Thread(target=lambda: dist.all_reduce(torch.ones(2), async_op=True).wait())
thread.start(), thread.join()
assert to_waits(timer.take()) == (0, 0)
"""


def test_waits_of_the_training_thread_are_timed_and_nothing_else_changes(tmp_path: Path) -> None:
    script = tmp_path / "exchanges.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(tmp_path / "store")]
    ended = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
