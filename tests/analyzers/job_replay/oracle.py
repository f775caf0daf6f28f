"""A training job simulated operation by operation, and the table that a profiler would have written of it.

It shares no code with the replay: each operation's end is looked up, or found from the ends of what it waits for.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import mean, median
from typing import NamedTuple

import numpy as np

from perfscope.tables.operations import Operations

PASS = {"F": "forward-compute", "B": "backward-compute"}
WAY = {"F": 1, "B": -1}


class Key(NamedTuple):
    kind: str
    step: int
    pipeline: int
    stage: int
    number: int


Times = Callable[[Key], int]


@dataclass
class Simulation:
    """One step of a 1F1B job with transfers, one reduction of gradients, clipping and an optimizer."""

    step: int
    pipelines: int
    stages: int
    microbatches: int
    times: Times
    starts: dict[Key, int] = field(default_factory=dict)
    ends: dict[Key, int] = field(default_factory=dict)

    def key(self, kind: str, pipeline: int, stage: int, number: int = 0) -> Key:
        return Key(kind, self.step, pipeline, stage, number)

    def order(self, stage: int) -> list[tuple[str, int]]:
        warm = min(self.stages - stage - 1, self.microbatches)
        order = [("F", number) for number in range(warm)]
        for number in range(self.microbatches - warm):
            order += [("F", warm + number), ("B", number)]
        return order + [("B", number) for number in range(self.microbatches - warm, self.microbatches)]

    def run(self) -> int:
        """The time of the step."""
        last = 0
        for pipeline in range(self.pipelines):
            for stage in range(self.stages):
                last = max(last, self.end(self.key("optimizer", pipeline, stage)))
                for letter in "FB":
                    if 0 <= stage + WAY[letter] < self.stages:
                        for number in range(self.microbatches):
                            self.end(self.key(f"{self.direction(letter)}-send", pipeline, stage, number))
        return last

    @staticmethod
    def direction(letter: str) -> str:
        return PASS[letter].split("-")[0]

    def end(self, key: Key) -> int:
        if key not in self.ends:
            members = self.members(key)
            begin = max(self.start(member) for member in members)
            for member in members:
                self.ends[member] = begin + self.times(member)
        return self.ends[key]

    def start(self, key: Key) -> int:
        if key not in self.starts:
            self.starts[key] = max((self.end(wait) for wait in self.waits(key)), default=0)
        return self.starts[key]

    def members(self, key: Key) -> list[Key]:
        direction, _, way = key.kind.partition("-")
        if way in ("send", "recv"):
            delta = WAY["F" if direction == "forward" else "B"] * (1 if way == "send" else -1)
            return [
                key,
                key._replace(kind=f"{direction}-{'recv' if way == 'send' else 'send'}", stage=key.stage + delta),
            ]
        if key.kind == "optimizer-clip-main-grad":
            return [key._replace(pipeline=p, stage=s) for p in range(self.pipelines) for s in range(self.stages)]
        if key.kind == "grads-reduce-scatter":
            return [key._replace(pipeline=pipeline) for pipeline in range(self.pipelines)]
        return [key]

    def waits(self, key: Key) -> list[Key]:
        order = self.order(key.stage)
        after = {
            "grads-reduce-scatter": key._replace(kind=PASS[order[-1][0]], number=order[-1][1]),
            "optimizer-clip-main-grad": key._replace(kind="grads-reduce-scatter"),
            "optimizer": key._replace(kind="optimizer-clip-main-grad"),
        }
        if key.kind in after:
            return [after[key.kind]]
        letter = "F" if key.kind.startswith("forward") else "B"
        own = key._replace(kind=PASS[letter])
        previous = key._replace(number=key.number - 1)
        if key.kind == own.kind:
            place = order.index((letter, key.number))
            found = [key._replace(kind=PASS[kind], number=number) for kind, number in order[max(place - 1, 0) : place]]
            if 0 <= key.stage - WAY[letter] < self.stages:
                found.append(key._replace(kind=f"{self.direction(letter)}-recv"))
            return found
        found = [own] if key.kind.endswith("send") else []
        if key.number:
            found += [previous] if key.kind.endswith("send") else [previous, own._replace(number=key.number - 1)]
        first = next(place for place, (kind, _) in enumerate(order) if kind == "B")
        if letter == "B" and not key.number and first >= 2:
            kind, number = order[first - 2]
            found.append(key._replace(kind=PASS[kind], number=number))
        return found


@dataclass
class ToyJob:
    """A job of a few steps with times that are random about a base, some of them changed."""

    pipelines: int = 2
    stages: int = 3
    microbatches: int = 4
    steps: int = 2
    jitter: int = 0
    seed: int = 0
    change: Callable[[Key, int], int] = lambda _key, time: time

    def time(self, key: Key) -> int:
        """The time of an operation; both ends of a transfer and all members of a collective have the same."""
        if key.kind == "optimizer-clip-main-grad":
            key = key._replace(pipeline=0, stage=0)
        if key.kind == "grads-reduce-scatter":
            key = key._replace(pipeline=0)
        if key.kind.endswith("recv"):
            delta = 1 if key.kind.startswith("forward") else -1
            key = key._replace(kind=key.kind.replace("recv", "send"), stage=key.stage - delta)
        base = {"forward-compute": 10_000_000, "backward-compute": 20_000_000}.get(key.kind, 1_000_000)
        jitter = random.Random(f"{self.seed} {key}").randint(0, self.jitter) if self.jitter else 0
        return self.change(key, base + jitter)

    def simulate(self, times: Times | None = None) -> list[Simulation]:
        found = [
            Simulation(step, self.pipelines, self.stages, self.microbatches, times or self.time)
            for step in range(self.steps)
        ]
        for simulation in found:
            simulation.run()
        return found

    def step_times(self, times: Times | None = None) -> list[int]:
        return [max(simulation.ends.values()) for simulation in self.simulate(times)]

    def ideal(self) -> Times:
        """The time of each operation without stragglers."""
        by_kind: dict[str, list[int]] = {}
        for simulation in self.simulate():
            for key in simulation.ends:
                by_kind.setdefault(key.kind, []).append(self.time(key))
        centres = {
            kind: round(mean(times) if kind in (*PASS.values(), "optimizer") else median(times))
            for kind, times in by_kind.items()
        }
        return lambda key: centres[key.kind]

    def operations(self) -> Operations:
        simulations = self.simulate()
        rows = [
            (key, simulation.starts[key], end) for simulation in simulations for key, end in simulation.ends.items()
        ]
        random.Random(self.seed).shuffle(rows)
        kinds = tuple(sorted({key.kind for key, _, _ in rows}))

        def column(values: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
            return np.asarray(values, np.int64)

        return Operations(
            kinds=kinds,
            kind=column([kinds.index(key.kind) for key, _, _ in rows]),
            step=column([key.step for key, _, _ in rows]),
            rank=column([key.stage * self.pipelines + key.pipeline for key, _, _ in rows]),
            pipeline=column([key.pipeline for key, _, _ in rows]),
            stage=column([key.stage for key, _, _ in rows]),
            start_ns=column([start for _, start, _ in rows]),
            duration_ns=column([end - start for _, start, end in rows]),
            sequence=column([key.number for key, _, _ in rows]),
            chunk=column([0] * len(rows)),
            global_chunk=column([key.stage for key, _, _ in rows]),
        )
