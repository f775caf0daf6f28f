"""A finding: a cause that a rule sees in the results of a run, what a fix regains of a step, evidence and advice."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated

from msgspec import Struct

from perfscope.analyzers.findings.training import StepPart, TracedRun
from perfscope.constants import GB, US_PER_S
from perfscope.report import percent
from perfscope.result import Doc, Figures, figure
from perfscope.units import format_seconds

#: A smaller share is no fault: pads of a short last batch, throttled steps, memory that is free, a line seldom seen.
NOTABLE = 0.1
#: A cause explains most where it is nearly all of it.
NEARLY_ALL = 0.75


class Basis(StrEnum):
    """What the cost rests on."""

    MEASURED = "measured"
    BOUND = "bound"
    REPLAY = "replay"  # of the profiled steps without the cause


class Proof(Figures, frozen=True):
    """One fact behind a finding."""

    text: Annotated[str, Doc("One sentence.")]
    pointers: Annotated[
        tuple[str, ...], Doc("JSON pointers to the figures that it rests on, in the same document.")
    ] = ()


def fact(text: str, pointer: str = "", keys: str = "") -> Proof:
    """A fact, and where its figures are: some keys of one object of the results, or the object."""
    pointers = tuple(f"/results{pointer}/{key}" for key in keys.split()) or ((f"/results{pointer}",) if pointer else ())
    return Proof(text, pointers)


class Fault(Struct, frozen=True):
    """What a rule sees in the results of a run; times are microseconds of a step.

    ``evidence`` has the most telling fact first. This fix saves ``scenario_part`` of what the scenario saves. A rank is
    None where the trace does not state it.

    Attributes:
        is_counted: Whether counts or exposed time show it: a replay that cannot tell its cost does not refute it.
        least_us: A rest of less is what every training has.
        is_of_all_steps: Whether it was measured in steps that nobody profiled, whose parts are not known.
        saved_bytes: What a fix regains of a GPU's memory, of a cause that costs memory and no time.
        wall_us: The wall clock over the steps of the loop, of a cause before the loop; else 0.
        title: What is wrong in this run, where that says more than the title of the rule.
        place: The function, file and line of the script, where it was seen.
    """

    cost_us: float
    interval_us: tuple[float, float]
    ranks: tuple[int | None, ...]
    evidence: tuple[Proof, ...]
    advice: str
    basis: Basis = Basis.MEASURED
    scenario: str = ""
    scenario_part: float = 1.0
    is_counted: bool = False
    is_of_all_steps: bool = False
    least_us: float = 0.0
    saved_bytes: int | None = None
    wall_us: float = 0.0
    title: str = ""
    place: str | None = None


class Finder(Struct, frozen=True):
    """One kind of finding; ``docs/findings/<id>.md`` explains it.

    It takes time of ``parts`` of a step, and at most all of the first. ``is_rest`` is for what other causes leave.
    """

    id: str
    title: str
    parts: tuple[StepPart, ...]
    find: Callable[[TracedRun], Fault | None]
    is_rest: bool = False


class Finding(Figures, frozen=True):
    """An entry of ``results.findings``: a cause that costs time or memory, and what to try."""

    id: Annotated[str, Doc("Its name, which never changes.")]
    title: Annotated[str, Doc("What is wrong.")]
    cost_us: Annotated[float, Doc("What a fix regains of a step.")]
    interval_us: Annotated[tuple[float, float], Doc("Least and most that it regains.")]
    step_us: Annotated[
        float,
        Doc("A step of the training loop with everything between it and the next; of traces alone the profiled step."),
    ]
    steps: Annotated[int | None, Doc("Steps of the loop; None of traces alone.")]
    saved_bytes: Annotated[
        int | None, Doc("What a fix regains of a GPU's memory, of a finding that costs memory and no time; else None.")
    ]
    basis: Annotated[
        Basis, Doc("``measured``, ``bound`` (not more than that) or ``replay`` (by ``perfscope whatif``).")
    ]
    scenario: Annotated[
        str | None, Doc("What ``perfscope whatif`` calls the replay that the cost is of; None of another basis.")
    ]
    ranks: Annotated[tuple[int, ...], Doc("Where it happens; empty where it is on all.")]
    evidence: Annotated[tuple[Proof, ...], Doc("What shows it.")]
    advice: Annotated[str, Doc("What to try, in one sentence.")]
    place: Annotated[str | None, Doc("The function, file and line of the script; None where it was not seen.")] = None
    of_wall: Annotated[
        bool, Doc("Whether it is before the loop; ``step_us`` is then the wall clock over its steps.")
    ] = False

    @figure
    def share_of_step(self) -> float:
        """``cost_us / step_us``: its share of the training loop, or of the wall clock."""
        return self.cost_us / self.step_us

    @figure
    def cost_s(self) -> float | None:
        """What a fix regains of the whole loop: ``steps`` times ``cost_us``; None of traces alone."""
        return None if self.steps is None else self.steps * self.cost_us / US_PER_S

    @figure
    def cost(self) -> str:
        """What a fix regains, for people: of the loop's seconds, of a step, or of memory."""
        if self.saved_bytes is not None:
            return f"{self.saved_bytes / GB:.2f} GB less at the peak"
        cost_s, share = self.cost_s, f"{percent(self.share_of_step):.1f} %"
        if self.steps is None or cost_s is None:
            return f"{format_seconds(self.cost_us / US_PER_S)} ({share} of a step)"
        loop_s = self.steps * self.step_us / US_PER_S
        whole = "wall clock" if self.of_wall else "loop"
        return f"{format_seconds(cost_s)} of {format_seconds(loop_s)} ({share} of the {whole})"

    @figure
    def page(self) -> str:
        """The page that explains it."""
        return f"docs/findings/{self.id}.md"
