"""Whose a trace is that does not say so."""

from __future__ import annotations

import re
from typing import TypeAlias

#: The rank of a trace that does not state it, or a pattern that finds it in the path.
RankRule: TypeAlias = "int | re.Pattern[str]"
RANK_IN_FILE_NAME = re.compile(r"rank[_\-.]?(\d+)[^/]*$", re.IGNORECASE)
