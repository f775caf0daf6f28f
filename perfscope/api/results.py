"""The results of a run: each one typed data that shows itself, or the reason why it is absent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any, Literal, NoReturn, TypeAlias, get_args, get_type_hints

from perfscope.analyzers.breakdown import Breakdown
from perfscope.analyzers.budget import Budget
from perfscope.analyzers.calls import Calls
from perfscope.analyzers.clock import ClockOffsets
from perfscope.analyzers.collectives import Collectives
from perfscope.analyzers.cost import Cost
from perfscope.analyzers.energy import Energy
from perfscope.analyzers.findings import Findings
from perfscope.analyzers.goodput import Goodput
from perfscope.analyzers.gpus import Gpus
from perfscope.analyzers.host import HostTime
from perfscope.analyzers.idle import Idle
from perfscope.analyzers.kernels import Kernels
from perfscope.analyzers.loop import Loop
from perfscope.analyzers.memory import MemoryUse
from perfscope.analyzers.mfu import Utilisation
from perfscope.analyzers.modules import ModuleTree
from perfscope.analyzers.operations import CountedOperations
from perfscope.analyzers.optimizer import OptimizerTime
from perfscope.analyzers.overlap import Overlap
from perfscope.analyzers.pipeline_bubble.measurement import PipelineBubble
from perfscope.analyzers.pipeline_steps import PipelineSteps
from perfscope.analyzers.roofline import Roofline
from perfscope.analyzers.saves import SaveTimes
from perfscope.analyzers.setup import Setup
from perfscope.analyzers.stacks import Stacks
from perfscope.analyzers.steps import StepTimes
from perfscope.analyzers.stragglers.records import LateRanks
from perfscope.analyzers.stragglers.traces import Stragglers
from perfscope.analyzers.throttling import Throttling
from perfscope.analyzers.timeline import JobTimeline
from perfscope.analyzers.wall_clock import WallClock
from perfscope.analyzers.whatif import WhatIf
from perfscope.engine.registry import analyzers
from perfscope.errors import MissingInput, UsageError
from perfscope.report import Section
from perfscope.result import ResultList


class Absent:
    """A result that does not exist, and why. It is false; to use it raises ``MissingInput`` with the reason.

    Attributes:
        name: The result.
        reason: Why it does not exist, in words.
    """

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason

    def data(self) -> NoReturn:
        """Nothing: ``MissingInput`` with the reason."""
        raise MissingInput(f"there is no result {self.name!r}: {self.reason}")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):  # Python and notebooks ask for what an object may have
            raise AttributeError(name)
        self.data()

    def sections(self) -> tuple[Section, ...]:
        """The reason as a section, for people."""
        return (Section("Not computed", notes=(f"{self.name}: {self.reason}",)),)

    def __bool__(self) -> Literal[False]:
        return False

    def __iter__(self) -> Iterator[NoReturn]:
        return iter((self.data(),))

    def __repr__(self) -> str:
        return f"<no {self.name}: {self.reason}>"

    def _repr_markdown_(self) -> str:
        return f"No {self.name}: {self.reason}"


#: A result of any analyzer, by a name that is known when it is looked up.
AnyResult: TypeAlias = Any


class Results:
    """The results of a run by name: ``results.steps`` or ``results["steps"]``.

    Those that no report has unless they are asked for, such as ``budget`` and ``whatif``, are computed when they are
    first used. Iterating gives the names. An analyzer needs no line here; with one, type checkers know its result.
    """

    findings: Findings | Absent
    wall_clock: WallClock | Absent
    steps: StepTimes | Absent
    setup: Setup | Absent
    gpus: Gpus | Absent
    cost: Cost | Absent
    saves: SaveTimes | Absent
    goodput: Goodput | Absent
    energy: Energy | Absent
    throttling: Throttling | Absent
    mfu: Utilisation | Absent
    breakdown: Breakdown | Absent
    host: HostTime | Absent
    overlap: Overlap | Absent
    idle: Idle | Absent
    calls: Calls | Absent
    optimizer: OptimizerTime | Absent
    kernels: Kernels | Absent
    loop: Loop | Absent
    operations: CountedOperations | Absent
    collectives: Collectives | Absent
    stragglers: Stragglers | Absent
    clock: ClockOffsets | Absent
    pipeline_bubble: PipelineBubble | Absent
    pipeline_steps: PipelineSteps | Absent
    modules: ModuleTree | Absent
    roofline: Roofline | Absent
    whatif: WhatIf | Absent
    budget: Budget | Absent
    late_ranks: LateRanks | Absent
    memory: MemoryUse | Absent
    timeline: JobTimeline | Absent
    stacks: Stacks | Absent

    def __init__(self, names: Sequence[str], look_up: Callable[[str], AnyResult]) -> None:
        self._names = tuple(names)
        self._look_up = look_up

    def __getitem__(self, name: str) -> AnyResult:
        """The result of an analyzer, also of one of another distribution.

        Raises:
            UsageError: No analyzer has that name.
        """
        if name not in self._names:
            raise UsageError(f"there is no result {name!r}: the results are {', '.join(self._names)}")
        return self._look_up(name)

    def __getattr__(self, name: str) -> AnyResult:
        if name.startswith("_") or name not in self._names:
            raise AttributeError(f"there is no result {name!r}: the results are {', '.join(self._names)}")
        return self._look_up(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._names]

    def __repr__(self) -> str:
        return f"<results: {', '.join(self._names)}>"


def type_of(name: str) -> Any:  # noqa: ANN401 - a type
    """The type of a result's data: what ``Results`` says, else what ``analyze`` of the analyzer returns."""
    hint = get_type_hints(Results).get(name)
    if hint is None:
        kind = get_type_hints(import_module({one.name: one.module for one in analyzers()}[name]).analyze)["return"]
    else:
        kind = next(kind for kind in get_args(hint) if kind is not Absent)
    if isinstance(kind, type) and issubclass(kind, ResultList):
        return get_type_hints(kind)[kind.__struct_fields__[0]]
    return kind
