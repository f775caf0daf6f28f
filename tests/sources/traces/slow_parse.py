"""A trace's events as the json module reads them, all of the file at once: slow, and plain enough to trust.

It shares no code with perfscope. Times are exact: microseconds are read as decimal fractions.
"""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

KINDS = {
    **dict.fromkeys(("kernel", "gpu_memcpy", "gpu_memset"), "device"),
    **dict.fromkeys(("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver"), "calls"),
    "user_annotation": "annotations",
    "cpu_op": "operators",
}

Rows = dict[str, list[tuple[Any, ...]]]


def parse(path: Path) -> dict[str, Any]:
    """The file's content; fractions are Decimal, and a bare list is that of the events."""
    raw = path.read_bytes()
    text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    content = json.loads(text.decode("utf-8", "replace"), parse_float=Decimal, strict=False)
    return {"traceEvents": content} if isinstance(content, list) else content


def read(path: Path) -> Rows:
    """Name, start, duration and correlation of every event that perfscope reads, sorted, without repetitions."""
    events = parse(path)["traceEvents"]
    rows: Rows = {"device": [], "calls": [], "annotations": [], "operators": []}
    met = set()
    for event in events:
        kind = KINDS.get(event.get("cat", "")) if event.get("ph") == "X" else None
        if kind is None or not isinstance(event.get("ts"), (int, str, Decimal)) or "dur" not in event:
            continue
        args = event.get("args") or {}
        row = (event["name"], _ns(event["ts"]), _ns(event["dur"]), _integer(args.get("correlation")))
        if row[2] < 0 or row[2] > 7 * 86400 * 10**9:
            continue
        whole = (*row, str(args.get("device", event.get("pid"))), str(args.get("stream", event.get("tid"))))
        if kind == "device" and row[3] != -1:
            if whole in met:
                continue
            met.add(whole)
        rows[kind].append(row)
    return {kind: sorted(members) for kind, members in rows.items()}


def _ns(microseconds: str | int | Decimal) -> int:
    return int((Decimal(microseconds) * 1000).to_integral_value())


def _integer(value: str | int | None) -> int:
    try:
        return -1 if value is None else int(value)
    except ValueError:
        return -1
