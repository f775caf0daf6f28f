"""The rules, in the order in which they claim time: a cause that explains others comes before them."""

from __future__ import annotations

from perfscope.analyzers.findings import batches, beside, devices, exchange, host, kernels, laggards, stages
from perfscope.analyzers.findings.finding import Rule

_FAMILIES = (batches, beside, laggards, stages, kernels, host, exchange, devices)


def all_rules() -> tuple[Rule, ...]:
    """Every rule of every family."""
    return tuple(rule for family in _FAMILIES for rule in family.RULES)
