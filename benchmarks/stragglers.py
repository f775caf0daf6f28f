"""Whether the right rank and the right cause are named, in trainings that are late on purpose.

``python -m benchmarks.stragglers`` judges the runs that were kept, and prints a section of ``reports/whole-loop.md``.

Other processes may use the processors meanwhile, which perfscope names as well. Where another cause was put in, the
answers "it had no processor" and "the exchange took longer" are left out: the threads of gloo have no processor either.
"""

from __future__ import annotations

import csv
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks import kept_run
from perfscope.analyzers.stragglers.lateness import LateCause, Lateness
from perfscope.analyzers.stragglers.records import analyze
from perfscope.constants import NS_PER_MS
from perfscope.sources.runs.run import read_run

ROOT = Path(__file__).parents[1]
FIXTURES = ROOT / "fixtures" / "stragglers"
REPORT = ROOT / "reports" / "whole-loop.md"
#: What was put in, by the word in a case's name: the cause that is the right answer, and what happened.
FAULTS = {
    "clean": (None, "nothing"),
    "garbage": (LateCause.GARBAGE, "a full collection of garbage"),
    "data": (LateCause.DATA, "a sample takes 30 ms to load (240 ms in five steps)"),
    "contention": (LateCause.CONTENTION, "another process on its processor"),
    "faults": (LateCause.FAULTS, "128 MiB of new memory"),
    "work": (LateCause.WORK, "sequences of twice the length"),
    "microbatches": (LateCause.WORK, "two micro-batches instead of one"),
    "sleep": (LateCause.BLOCKED, "the host sleeps 30 ms (240 ms in five steps)"),
    "network": (LateCause.NETWORK, "an exchange takes 240 ms longer, on all ranks"),
    "save": (LateCause.SAVE, "a checkpoint after every sixth step, on this rank alone"),
    "device50": (LateCause.DEVICE, "another process on its GPU half of the time"),
    "device100": (LateCause.DEVICE, "another process on its GPU"),
    "slow33": (LateCause.DEVICE, "33 % of a GPU, and 50 % for the other rank"),
    "slow40": (LateCause.DEVICE, "40 % of a GPU, and 50 % for the other rank"),
}


@dataclass(frozen=True)
class Answer:
    """What is said of one run.

    Attributes:
        name: ``STRATEGY.FAULT`` or ``STRATEGY.FAULT.rare``, behind the folder of its backend.
        rank: The late rank; absent where nobody is late, or all are.
        first: The answer that is compared; absent for none.
        is_right: Whether rank and cause are those that were put in.
    """

    name: str
    rank: int | None
    first: Lateness | None
    is_right: bool

    @property
    def words(self) -> list[str]:
        """Strategy, fault, and whether it was rare."""
        return self.name.rpartition("/")[2].split(".")


def judge(name: str, run: Path, rank: int | None) -> Answer:
    """Compare the first answer with what was put in."""
    expected, _ = FAULTS[name.rpartition("/")[2].split(".")[1]]
    by_load = {LateCause.CONTENTION, LateCause.NETWORK} - {expected}
    first = next((late for late in analyze(read_run(run)).late if late.cause not in by_load), None)
    named = None if first is None else (first.cause, first.rank)
    return Answer(name, rank, first, named == (None if expected is None else (expected, rank)))


def judge_fixtures() -> list[Answer]:
    """The answers to all runs that were kept, as ``cases.csv`` lists them."""
    with (FIXTURES / "cases.csv").open() as file:
        rows = list(csv.DictReader(file))
    return [
        judge(row["run"], kept_run(FIXTURES / row["run"]), int(row["rank"]) if row["rank"] else None) for row in rows
    ]


def to_table(answers: list[Answer]) -> list[str]:
    """What was put in, and what was answered."""
    lines = [
        "| Training | On | Put in | Rank | First answer | Rank | When | Cost (ms) | Right |",
        "|:---|:---|:---|---:|:---|---:|:---|---:|:---|",
    ]
    for answer in answers:
        strategy, fault, *rest = answer.words
        late = answer.first
        cells = ["nothing", "n/a", "n/a", "n/a"]
        if late is not None:
            when = "most steps" if late.persistent else f"{late.steps} steps"
            rank = "all" if late.rank is None else str(late.rank)
            cells = [str(late.cause), rank, when, f"{late.cost_ns / NS_PER_MS:.0f}"]
        where = "GPUs" if answer.name.startswith("nccl/") else "processors"
        put_in = FAULTS[fault][1] + (", in five steps" if "rare" in rest else "")
        rank = "n/a" if answer.rank is None else str(answer.rank)
        right = "yes" if answer.is_right else "no"
        lines.append(f"| {strategy} | {where} | {put_in} | {rank} | {' | '.join(cells)} | {right} |")
    return lines


def to_markdown(answers: list[Answer]) -> str:
    """The section of the report."""
    injected = [answer for answer in answers if answer.words[1] != "clean"]
    clean = [answer for answer in answers if answer.words[1] == "clean"]
    lines = [
        "## Late ranks",
        "",
        "Two ranks trained a small GPT, and one of them was late on purpose. `perfscope analyze RUN --only late_ranks`",
        "says who was late, what it cost and why ([docs/stragglers.md](../docs/stragglers.md)). "
        "The ranks used gloo on two busy",
        "processors (torch 2.13), NCCL on two H200, or NCCL on parts of one H200 (torch 2.11).",
        "",
        "Contention by other processes is named as well, and an exchange whose threads had no processor. Both are",
        "left out here, except where they were put in. `python -m benchmarks.stragglers` prints this section",
        "from the records in [fixtures/stragglers](../fixtures/stragglers/README.md).",
        "",
        f"- Rank and cause are right in {_count_right(injected)} of {len(injected)} runs with a fault.",
        f"- Nobody is named in {_count_right(clean)} of {len(clean)} clean runs.",
        "- A slow GPU of a pipeline stage without replicas is not seen: the answer says that it was not compared.",
        "",
        *to_table(answers),
    ]
    return "\n".join(lines) + "\n"


def _count_right(answers: list[Answer]) -> int:
    return sum(answer.is_right for answer in answers)


def main() -> None:
    """Judge the runs that were kept, and print the section."""
    sys.stdout.write(to_markdown(judge_fixtures()))


if __name__ == "__main__":
    main()
