"""The answer of a scenario: the time of a step, what is saved, and how far that may be off."""

from __future__ import annotations

import math

from msgspec import Struct

from perfscope.analyzers.replay.changes import Scenario
from perfscope.analyzers.replay.measured import Measured
from perfscope.analyzers.replay.replay import span_of_steps
from perfscope.analyzers.replay.scenarios import parse_scenario
from perfscope.constants import NS_PER_US
from perfscope.report import Json

#: Of what a scenario saves: how far predictions were from changes that were really made, beside what is known.
_UNSEEN = 0.2


class Outlook(Struct, frozen=True):
    """The answer of one scenario.

    Attributes:
        name: The scenario as it is written.
        title: What it means.
        step_ns: The time of a step.
        saved_ns: What is saved of the replayed step, or of the measured one where passes are simulated.
        uncertain_ns: How far the answer may be off. It holds the error of the replayed measured step, the spread of the
            measured steps, and what this scenario cannot know. It holds a fifth of the saving, too: measured changes
            differed from their predictions by as much where no other term tells (reports/what-if.md).
        assumptions: What it rests on.
    """

    name: str
    title: str
    step_ns: float
    saved_ns: float
    uncertain_ns: float
    assumptions: tuple[str, ...]

    def data(self, replayed_ns: float) -> dict[str, Json]:
        """One entry of ``scenarios`` in JSON."""
        return {
            "name": self.name,
            "title": self.title,
            "step_us": self.step_ns / NS_PER_US,
            "saved_us": self.saved_ns / NS_PER_US,
            "interval_us": [
                (self.step_ns - self.uncertain_ns) / NS_PER_US,
                (self.step_ns + self.uncertain_ns) / NS_PER_US,
            ],
            "change": -self.saved_ns / replayed_ns,
            "assumptions": list(self.assumptions),
        }


def write_scenario(scenario: Scenario, value: str) -> str:
    """A scenario as it is written."""
    return f"{scenario.name}={value}" if value else scenario.name


def apply_scenario(measured: Measured, scenario: Scenario, value: str) -> Outlook:
    """Replay the job with a change.

    Raises:
        MissingInput: The traces cannot answer it.
        UsageError: Its value names nothing.
    """
    changed = scenario.change(measured, value)
    span = span_of_steps(measured.job, measured.replay.run(changed.times).end_ns)
    start_ns = measured.replayed.step_ns if changed.start_ns is None else changed.start_ns
    ahead_ns = start_ns - measured.replayed.step_ns
    step_ns = max(span.step_ns + ahead_ns + changed.added_ns, changed.least_ns / span.steps, 0.0)
    saved_ns = start_ns - step_ns
    return Outlook(
        name=write_scenario(scenario, value),
        title=scenario.title,
        step_ns=step_ns,
        saved_ns=saved_ns,
        uncertain_ns=math.hypot(measured.uncertain_ns, changed.doubt_ns, _UNSEEN * saved_ns),
        assumptions=changed.assumptions,
    )


def answer_scenario(measured: Measured, text: str) -> Outlook:
    """The same for a scenario as it is written.

    Raises:
        MissingInput: The traces cannot answer it.
        UsageError: There is none of that name, or it names nothing.
    """
    return apply_scenario(measured, *parse_scenario(text))
