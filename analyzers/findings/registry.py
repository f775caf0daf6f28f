"""The rules, in the order in which they claim time: a cause that explains others comes before them."""

from __future__ import annotations

from importlib import import_module

from perfscope.analyzers.findings.finding import Rule, Rules

#: The modules of this package that hold rules.
_FAMILIES = (
    "batches",
    "beside",
    "laggards",
    "stages",
    "kernels",
    "operators",
    "host",
    "exchange",
    "devices",
    "memory",
)


def all_rules() -> tuple[Rule, ...]:
    """Every rule of every family."""
    return tuple(rule for family in _FAMILIES for rule in _rules_of(family))


def _rules_of(family: str) -> Rules:
    rules: Rules = import_module(f"perfscope.analyzers.findings.{family}").RULES
    return rules
