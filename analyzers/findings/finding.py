"""A finding: what costs time, how much of it a fix would regain, on which evidence, and what to try."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from perfscope.analyzers.findings.facts import Evidence
from perfscope.analyzers.findings.training import Training
from perfscope.report import Json

if TYPE_CHECKING:
    from perfscope.analyzers.replay.scenarios import Regain


class Account(Enum):
    """Times of a step that several causes may claim a part of; each part counts for one of them."""

    HOST = "the device waits for the host, or copies"
    COMMUNICATION = "exposed communication"
    COMPUTE = "computation"
    SLACK = "what a step does not compute: ranks wait for late hosts in communication, so that both are one time"
    PIPELINE = "idle stages"
    BESIDE = "time beside the steps"


class Confidence(StrEnum):
    """How sure a cause is."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Basis(StrEnum):
    """What the cost rests on."""

    MEASURED = "measured"
    BOUND = "bound"
    REPLAY = "replay"  # of the profiled steps without the cause


class Cause(Struct, frozen=True):
    """What a rule sees in the results of a run; times are microseconds of a step.

    Attributes:
        cost_us: What a fix regains.
        interval_us: Least and most that it regains.
        ranks: The ranks where it happens.
        evidence: Facts, the most telling first.
        advice: One sentence: what to try, with the option's name in the framework.
        confidence: How sure it is.
        basis: What the cost rests on.
        scenario: What ``perfscope whatif`` calls a step without it; empty where no scenario fits.
        is_counted: Whether counts or exposed time show it, however much steps differ: its cost is uncertain then, and
            not the cause.
        scenario_part: How much of what the scenario saves this fix saves.
        is_of_all_steps: Whether it was measured in the steps that nobody profiled: the time of the profiled ones is no
            limit for it.
        replay: What a replay without it says; absent where none was made.
        saved_bytes: What a fix regains of a GPU's memory, of a cause that costs memory and no time.
        is_beside: Whether it comes on top of the steps whose mean the shares are of.
    """

    cost_us: float
    interval_us: tuple[float, float]
    ranks: tuple[int, ...]
    evidence: tuple[Evidence, ...]
    advice: str
    confidence: Confidence = Confidence.HIGH
    basis: Basis = Basis.MEASURED
    scenario: str = ""
    scenario_part: float = 1.0
    is_counted: bool = False
    is_beside: bool = False
    is_of_all_steps: bool = False
    replay: Regain | None = None
    saved_bytes: int | None = None


class Rule(Struct, frozen=True):
    """One kind of finding.

    Attributes:
        id: Its name, which never changes; ``docs/findings/<id>.md`` explains it.
        title: What is wrong, in a few words.
        accounts: What its time is a part of, the account that limits it first.
        find: Looks for it.
    """

    id: str
    title: str
    accounts: tuple[Account, ...]
    find: Callable[[Training], Cause | None]


class Finding(Struct, frozen=True):
    """A cause that counts.

    Attributes:
        id: Its rule.
        title: The rule's.
        cost_us: What a fix regains of a step, without what counts for other findings.
        step_us: The step that it is a part of.
        cause: What was seen.
    """

    id: str
    title: str
    cost_us: float
    step_us: float
    cause: Cause

    @property
    def share(self) -> float:
        """The cost as a share of a step."""
        return self.cost_us / self.step_us

    def data(self) -> dict[str, Json]:
        """One entry of ``results.findings``."""
        return {
            "id": self.id,
            "title": self.title,
            "cost_us": self.cost_us,
            "interval_us": list(self.cause.interval_us),
            "share_of_step": self.share,
            "step_us": self.step_us,
            "saved_bytes": self.cause.saved_bytes,
            "basis": str(self.cause.basis),
            "replay": None if self.cause.replay is None else self.cause.replay.data(),
            "ranks": list(self.cause.ranks),
            "evidence": [evidence.data() for evidence in self.cause.evidence],
            "advice": self.cause.advice,
            "confidence": str(self.cause.confidence),
            "page": f"docs/findings/{self.id}.md",
        }


Rules: TypeAlias = tuple[Rule, ...]
