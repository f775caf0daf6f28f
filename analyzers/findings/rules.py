"""Every rule, loaded: for a process that has time to import what the findings will ask, before they do."""

from __future__ import annotations

from perfscope.analyzers.findings.registry import all_rules

RULES = all_rules()
