"""Snapshots of an allocator as torch pickles them, made of a short script of allocations."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SEGMENT = 0x10000000000
SEGMENT_BYTES = 1 << 46
MAIN = ("<module>", "/app/train.py")
FORWARD = (("linear", "/lib/site-packages/torch/nn/functional.py"), ("forward", "/app/model.py"), MAIN)
LOSS = (("cross_entropy", "/lib/site-packages/torch/nn/functional.py"), ("forward", "/app/model.py"), MAIN)
OPTIMIZER = (("_multi_tensor_adamw", "/lib/site-packages/torch/optim/adamw.py"), MAIN)
GATHER = (("alloc_storage", "/lib/site-packages/torch/distributed/fsdp/_fully_shard/_fsdp_param.py"), MAIN)
BACKWARD: tuple[tuple[str, str], ...] = ()
Stack = tuple[tuple[str, str], ...]


@dataclass
class Script:
    """Allocations and frees in turn; each is a microsecond later than the one before."""

    trace: list[dict[str, Any]] = field(default_factory=list)
    live: dict[int, tuple[int, int, Stack]] = field(default_factory=dict)
    begin_us: int = 1_700_000_000_000_000
    _next: int = SEGMENT
    _frames: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    _lists: dict[Stack, list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def now_ns(self) -> int:
        """The time of the next event."""
        return (self.begin_us + len(self.trace)) * 1000

    def before(self, size: int, stack: Stack = ()) -> int:
        """What was allocated before the history began."""
        return self._take(size, stack)

    def allocate(self, size: int, stack: Stack = FORWARD) -> int:
        address = self._take(size, stack)
        self._add("alloc", address, size, stack)
        return address

    def free(self, *addresses: int) -> None:
        for address in addresses:
            size, _, _ = self.live.pop(address)
            self._add("free_requested", address, size, ())
            self._add("free_completed", address, size, ())

    def act(self, action: str, size: int) -> None:
        self._add(action, SEGMENT, size, ())

    def snapshot(self) -> dict[str, Any]:
        blocks = [
            {
                "address": address,
                "size": rounded,
                "requested_size": size,
                "state": "active_allocated",
                "frames": self._list(stack),
            }
            for address, (size, rounded, stack) in sorted(self.live.items())
        ]
        segment = {"device": 0, "address": SEGMENT, "total_size": SEGMENT_BYTES, "stream": 0, "segment_type": "large"}
        return {"segments": [{**segment, "blocks": blocks}], "device_traces": [self.trace], "allocator_settings": {}}

    def write(self, path: Path, protocol: int = 4) -> Path:
        path.write_bytes(pickle.dumps(self.snapshot(), protocol))
        return path

    def _take(self, size: int, stack: Stack) -> int:
        address, rounded = self._next, -(-size // 512) * 512
        self._next += rounded
        self.live[address] = size, rounded, stack
        return address

    def _add(self, action: str, address: int, size: int, stack: Stack) -> None:
        event: dict[str, Any] = {"action": action, "addr": address, "size": size, "stream": 0}
        # torch makes a text of its own for each event
        event |= {"time_us": self.begin_us + len(self.trace), "compile_context": "".join(["N", "/A"])}
        self.trace.append({**event, "frames": self._list(stack)})

    def _list(self, stack: Stack) -> list[dict[str, Any]]:
        return [self._frames.setdefault(frame, {"filename": frame[1], "line": 7, "name": frame[0]}) for frame in stack]
