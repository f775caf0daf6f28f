"""Which rank is late, in which steps, what that costs, and why: from the records of every step, without a trace."""

from __future__ import annotations

from perfscope.analyzers.late_ranks.axes import axes_of_groups, split_waits
from perfscope.analyzers.late_ranks.device_pace import compare_devices, find_slow_devices
from perfscope.analyzers.late_ranks.excesses import LateStep, find_late_steps, measure_excesses
from perfscope.analyzers.late_ranks.lateness import Lateness, find_lateness
from perfscope.analyzers.late_ranks.parts import split_steps
from perfscope.analyzers.late_ranks.result import LateRanks
from perfscope.analyzers.shared.step_selection import last_attempts
from perfscope.errors import MissingInput
from perfscope.tables.run import Run

_FEWEST_RANKS = 2
_FEWEST_STEPS = 5
_MOST_LATE_STEPS = 20


def analyze(run: Run) -> LateRanks:
    """Compare the steps of all ranks.

    Raises:
        MissingInput: There are not two ranks with the same steps.
    """
    tables = last_attempts(run.steps)
    if len(tables) < _FEWEST_RANKS:
        raise MissingInput("needs two ranks or more that completed steps")
    if all(table.host is None for table in tables):
        raise MissingInput("this run did not record what its hosts did in each step")
    parts = split_steps(tables)
    if parts is not None and len(parts.step) < _FEWEST_STEPS:
        parts = None
    has_stages = _has_stages(run)
    devices = compare_devices(tables, run, has_stages=has_stages)
    if parts is None and not devices.paces:
        raise MissingInput(f"the ranks have fewer than {_FEWEST_STEPS} steps in common that can be compared")
    counts_compute = parts is not None and parts.times_exchange and not has_stages
    lateness: list[Lateness] = []
    late_steps: tuple[LateStep, ...] = ()
    if parts is not None:
        excesses = measure_excesses(parts, counts_compute=counts_compute)
        lateness = find_lateness(parts, excesses)
        late_steps = find_late_steps(parts, excesses, _MOST_LATE_STEPS)
    slow = find_slow_devices(devices.paces, tables)
    ordered = sorted([*lateness, *slow], key=lambda late: -late.cost_ns)
    axis = _collectives_axis(run)
    waits = split_waits(parts, tables, axes_of_groups(run)) if parts is not None and axis is None else ()
    return LateRanks(
        parts, tuple(ordered), devices.paces, counts_compute, has_stages, axis, waits, late_steps, devices.unseen
    )


def _collectives_axis(run: Run) -> str | None:
    """The axis of parallelism that all collectives serve; None where there are several, or none is known."""
    axes = {axis for rank in run.ranks for axis in rank.parallel if axis != "pp"}
    used = [axis for axis in axes if len({rank.parallel.get(axis) for rank in run.ranks}) > 1]
    return used[0].upper() if len(used) == 1 else None


def _has_stages(run: Run) -> bool:
    """Whether ranks are stages of a pipeline."""
    return bool(run.micro_batches) or len({rank.parallel.get("pp") for rank in run.ranks}) > 1
