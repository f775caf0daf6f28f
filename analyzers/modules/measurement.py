"""What the modules of one trace took on its devices, by phase."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from perfscope.analyzers.flops.counted_calls import count_operators
from perfscope.analyzers.modules.attribution import ModuleMap, Owner, Owners, Phase, find_owners
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.trace import ABSENT, Trace, distinct, join

_MOST_OUTSIDE = 12


@dataclass(frozen=True, slots=True)
class ModuleTimes:
    """One module of one rank, by itself: without the modules inside it.

    Attributes:
        path: Its path in the model; ``PATH::compiled N`` for what torch.compile made of it.
        around: The path of the module around its first forward; ``""`` where there is none.
        calls: How often it was called forward, recomputation left out.
        device_ns: Time of its device events, by Phase.
        kernels: How many they are, by Phase.
        flops: Operations of its operators, by Phase; absent where the trace states no inputs.
    """

    path: str
    around: str
    calls: int
    device_ns: tuple[int, ...]
    kernels: tuple[int, ...]
    flops: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class RankModules:
    """The modules of one trace.

    Attributes:
        rank: The rank; absent where nothing states it.
        steps: How many marked steps the times are of; 0 for the whole trace.
        modules: Every module that was called or owns time.
        owners: Time and number of the device events that belong to no module, by owner.
        outside: The operators with the most time among Owner.OUTSIDE, and their time.
        has_numbers: Whether the trace has the numbers that join backward passes.
        path: The trace.
    """

    rank: int | None
    steps: int
    modules: tuple[ModuleTimes, ...]
    owners: dict[Owner, tuple[int, int]]
    outside: tuple[tuple[str, int], ...] = ()
    has_numbers: bool = True
    path: str = field(default="", compare=False)

    @property
    def modules_ns(self) -> int:
        """Time that belongs to modules."""
        return sum(sum(module.device_ns) for module in self.modules)

    @property
    def total_ns(self) -> int:
        """Time of all device events; those that overlap each count in full."""
        return self.modules_ns + sum(time for time, _ in self.owners.values())

    @property
    def computing_ns(self) -> int:
        """Time of all device events but communication, which lasts as long as a rank waits for others."""
        of_modules = sum(module.device_ns[Phase.COMMUNICATION] for module in self.modules)
        return self.total_ns - of_modules - self.owners.get(Owner.COMMUNICATION, (0, 0))[0]

    @property
    def owned(self) -> float | None:
        """The share of the time that has a module, or an owner other than a launch that is not in the trace."""
        lost = self.owners.get(Owner.NOT_LAUNCHED, (0, 0))[0]
        return 1 - lost / self.total_ns if self.total_ns else None


def measure_modules(trace: Trace) -> RankModules | None:
    """The modules of a trace; None where it marks none, or has no device events."""
    modules = ModuleMap(trace)
    if not modules.names or not len(trace.device):
        return None
    owners = find_owners(trace, modules)
    inside = trace.step != ABSENT if len(trace.steps) else np.ones(len(trace.device), np.bool_)
    count, phases = len(modules.names), len(Phase)
    key = owners.module * phases + owners.phase
    of_modules = np.flatnonzero(inside & (owners.module != ABSENT))
    device_ns = _sum(key[of_modules], trace.device.duration_ns[of_modules], count * phases).reshape(count, phases)
    kernels = np.bincount(key[of_modules], minlength=count * phases).reshape(count, phases)
    flops = _flops(trace, modules)
    details = trace.details
    return RankModules(
        rank=trace.rank,
        steps=len(distinct(trace.step[inside])) if len(trace.steps) else 0,
        modules=tuple(
            ModuleTimes(
                path=path,
                around="" if modules.around[number] == ABSENT else modules.names[modules.around[number]],
                calls=modules.calls[number],
                device_ns=tuple(device_ns[number].tolist()),
                kernels=tuple(kernels[number].tolist()),
                flops=None if flops is None else tuple(flops[number].tolist()),
            )
            for number, path in enumerate(modules.names)
        ),
        owners=_times_by_owner(trace, owners, inside),
        outside=_outside(trace, owners, inside),
        has_numbers=details is not None and bool((details.sequence != ABSENT).any()),
        path=trace.path,
    )


def _sum(keys: Int64, values: Int64, length: int) -> Int64:
    totals = np.zeros(length, np.int64)
    np.add.at(totals, keys, values)
    return totals


def _times_by_owner(trace: Trace, owners: Owners, inside: Bool) -> dict[Owner, tuple[int, int]]:
    times = {}
    for owner in Owner:
        rows = inside & (owners.owner == owner)
        if rows.any():
            times[owner] = int(trace.device.duration_ns[rows].sum()), int(rows.sum())
    return times


def _outside(trace: Trace, owners: Owners, inside: Bool) -> tuple[tuple[str, int], ...]:
    """The operators that launched what is outside of modules."""
    rows = np.flatnonzero(inside & (owners.owner == Owner.OUTSIDE))
    operator = join(trace.device.external_id[rows], trace.operators.external_id)
    names = np.append(trace.operators.name.astype(np.int64), ABSENT)[operator]
    totals: dict[str, int] = {}
    for name, time in zip(names.tolist(), trace.device.duration_ns[rows].tolist(), strict=True):
        text = "(no operator)" if name == ABSENT else trace.names[name]
        totals[text] = totals.get(text, 0) + time
    return tuple(sorted(totals.items(), key=lambda item: (-item[1], item[0]))[:_MOST_OUTSIDE])


def _flops(trace: Trace, modules: ModuleMap) -> Int64 | None:
    """Operations by module and phase; None where the trace states no inputs of operators."""
    counted = count_operators(trace)
    if trace.details is None or not trace.details.distinct_inputs:
        return None
    operators = trace.operators.take(counted.rows)
    places = modules.find(operators.start_ns, operators.thread)
    inside = places.module != ABSENT
    if len(trace.steps):
        step = np.searchsorted(trace.steps.start_ns, operators.start_ns, side="right") - 1
        inside &= (step >= 0) & (operators.start_ns < trace.steps.end_ns[np.maximum(step, 0)])
    count, phases = len(modules.names), len(Phase)
    key = (places.module * phases + places.phase)[inside]
    return _sum(key, counted.flops[inside], count * phases).reshape(count, phases)
