"""How a trace is read: whose it is where it does not say so, and when its text is inflated."""

from __future__ import annotations

import re
from enum import Enum
from typing import TypeAlias

#: The rank of a trace that does not state it, or a pattern that finds it in the path.
RankRule: TypeAlias = "int | re.Pattern[str]"
RANK_IN_FILE_NAME = re.compile(r"rank[_\-.]?(\d+)[^/]*$", re.IGNORECASE)


class Pace(Enum):
    """When a producer works: AHEAD in a thread of its own, or IN_TURN where other workers keep the processors busy."""

    AHEAD = "ahead"
    IN_TURN = "in turn"
