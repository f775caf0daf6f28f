"""The budget of a step."""

from typing import TypedDict

from perfscope.api.schema.windowed import Windowed


class TermData(TypedDict):
    """A term of the budget.

    Attributes:
        kind: What kind of time: compute, communication, idle and so on.
        name: Its name, such as a class of kernels or a cause; empty where the kind says all.
        operator: The operator that launched it, where they were read.
        us: Mean over ranks and steps.
    """

    kind: str
    name: str
    operator: str | None
    us: float


class BudgetData(Windowed):
    """``results.budget``: what a mean step is made of; the terms add up to it exactly.

    Attributes:
        step_us: The mean step over ranks and steps.
        steps: Their numbers; empty where no step is marked.
        ranks: Devices, or hosts, that the means are over.
        terms: Each term.
    """

    step_us: float
    steps: list[int]
    ranks: int
    terms: list[TermData]
