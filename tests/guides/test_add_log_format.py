"""CONTRIBUTING's guide "Add a log format": one new file and one line make every command that reads logs know it."""

from __future__ import annotations

import json

from tests.guides.tree import Tree

TOY = '''\
"""Toy: a line a step, ``toy: step 3 took 1.50 s, loss 2.5``, after ``toy: batch 16``."""

from __future__ import annotations

from dataclasses import dataclass

from perfscope.constants import NS_PER_S
from perfscope.sources.joblog.log_format import FormatState, LineMatch, LineRule, LogFormat, counts
from perfscope.sources.joblog.text import parse_number

SOURCE = "toy's step time"


@dataclass(slots=True)
class _State(FormatState):
    """How many steps were read."""

    steps: int = 0


def _on_step(state: _State, line: LineMatch) -> None:
    record = state.log.timed(line["seconds"], NS_PER_S, int(line["step"]), loss=parse_number(line["loss"]))
    if record is not None:
        state.log.add(SOURCE, record, line)
        state.steps += 1


def _close(state: _State) -> None:
    state.log.set_fact("train_iterations", state.steps, "records")


FORMAT = LogFormat(
    framework="toy",
    state=_State,
    rules=(
        LineRule(b"toy: batch", rb"toy: batch (\\d+)", counts("gbs")),
        LineRule(
            b"toy: step",
            rb"toy: step (?P<step>\\d+) took (?P<seconds>\\S+) s, loss (?P<loss>\\S+)",
            _on_step,
        ),
    ),
    sources=(SOURCE,),
    close=_close,
)
'''
LINE = '"toy",'
LOG = "toy: batch 16\n" + "".join(f"[rank0]:toy: step {step} took {step / 2} s, loss 2.5\n" for step in (1, 2, 3))


def test_a_new_file_and_one_line_add_a_format(tree: Tree) -> None:
    tree.add_file("perfscope/sources/joblog/formats/toy.py", TOY)
    tree.add_line("perfscope/sources/joblog/registry.py", LINE, before='"nemo",')
    tree.add_file("toy.log", LOG)

    read = tree.perfscope("logs", "toy.log", "--format", "json")
    assert (read.code, read.stderr) == (0, "")
    (log,) = json.loads(read.stdout)["logs"]
    assert (log["framework"], log["time_source"], log["status"]) == ("toy", "toy's step time", "ok")
    assert (log["median_s"], log["gbs"], log["samples_per_s"]) == (1.25, 16, 12.8)
    assert (log["complete"], log["loss"]) == (True, {"first": 2.5, "last": 2.5})
