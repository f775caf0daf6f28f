"""The group of a wait is that whose work was launched; groups that are written in Python work as before."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.conftest import environment

pytestmark = pytest.mark.slow
SCRIPT = """
import sys, threading
import torch, torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed import distributed_c10d as c10d
from perfscope.hooks.timers.exchange_groups import ExchangeGroups

class Mine(dist.ProcessGroup):
    calls = 0
    def allreduce(self, tensors, opts=None):
        Mine.calls += 1
        return super().allreduce(tensors, opts) if Mine.calls > 1 else None

class Other(dist.ProcessGroup):
    pass

def outcome(group):
    try:
        return group.allreduce([torch.ones(1)], dist.AllreduceOptions())
    except Exception as error:
        return type(error).__name__, str(error)[:40]

before = [outcome(Mine(0, 1)), outcome(Mine(0, 1)), outcome(Other(0, 1))]
Mine.calls = 0
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
pair = dist.new_group([0], group_desc="mesh_tp")
written, groups = [], ExchangeGroups()
groups.begin(c10d, threading.get_ident(), lambda facts: written.append([dict(fact) for fact in facts]))
assert [outcome(Mine(0, 1)), outcome(Mine(0, 1)), outcome(Other(0, 1))] == before, before

tensor = torch.ones(2)
work = dist.all_reduce(tensor, async_op=True)
other = dist.all_reduce(tensor, group=pair, async_op=True)
assert (groups.group_of(work), groups.group_of(other)) == (0, 1)
assert [fact["description"] for fact in written[-1]] == ["default_pg", "mesh_tp"], written
assert [len(facts) for facts in written] == [1, 2]
work.wait(), other.wait()

result = functional.all_reduce(torch.ones(4), "sum", pair)
assert groups.group_of_result(result) == 1
assert groups.group_of_result(result.view(2, 2)) == 1  # nobody waited yet
assert groups.group_of_result(functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD)) == 0
assert result.tolist() == [1.0] * 4
more = [dist.new_group([0]) for _ in range(3)]
numbers = [groups.group_of(dist.all_reduce(tensor, group=group, async_op=True)) for group in more]
assert numbers == [2, 3, None], numbers  # four are told apart
groups.add_reducer(pair)
assert groups.reducer == 1
groups.add_reducer(pair)
assert groups.reducer == 1
groups.add_reducer(dist.group.WORLD)
assert groups.reducer is None  # of two, which one waits is not known

inside = []
thread = threading.Thread(target=lambda: inside.append(groups.group_of(dist.all_reduce(tensor, async_op=True))))
thread.start(), thread.join()
assert inside == [None]
"""


def test_the_group_of_work_is_that_which_launched_it(tmp_path: Path) -> None:
    script = tmp_path / "groups.py"
    script.write_text(textwrap.dedent(SCRIPT))
    ended = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "store")], env=environment(), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
