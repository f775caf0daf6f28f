"""Whether the right rank and the right cause are named, in trainings that are late on purpose.

Run: ``python -m benchmarks.stragglers [--runs DIR] [--fixtures]``. Without ``--runs`` every case of
``tests/scripts/late_ranks.py`` is trained, which takes some minutes. It prints ``reports/stragglers.md``; with
``--fixtures`` the records of the runs become those of ``fixtures/stragglers``, which the report is written from, as
``--report`` writes it again.

Other processes may use the processors meanwhile, which perfscope names as well: where another cause was put in, answers
"it had no processor" and, as the threads of gloo have none either, "the exchange took longer" are left out before the
first answer is compared with it, and so they are of clean runs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.straggler_fixtures import keep_fixture
from benchmarks.straggler_notes import FAULTS, FAULTS_IN_PARTS, IN_PARTS, MENDED, PARTS, SHARES
from perfscope.analyzers.late_ranks import analyze
from perfscope.analyzers.late_ranks.lateness import Cause, Lateness
from perfscope.constants import NS_PER_MS
from perfscope.sources.runs.run import read_run

ROOT = Path(__file__).parents[1]
FIXTURES = ROOT / "fixtures" / "stragglers"
SCRIPT = ROOT / "tests" / "scripts" / "late_ranks.py"
REPORT = ROOT / "reports" / "stragglers.md"
LATE = 1
STRATEGIES = ("ddp", "fsdp2", "deepspeed", "pipeline")
CAUSES = {
    "clean": None,
    "garbage": Cause.GARBAGE,
    "data": Cause.DATA,
    "contention": Cause.CONTENTION,
    "faults": Cause.FAULTS,
    "work": Cause.WORK,
    "microbatches": Cause.WORK,
    "sleep": Cause.BLOCKED,
    "network": Cause.NETWORK,
    "save": Cause.SAVE,
    **{f"device{share}": Cause.DEVICE for share in SHARES},
    **{f"slow{part}": Cause.DEVICE for part in PARTS},
}
RARE = ("garbage", "data", "sleep", "contention")
#: Delays of a known length (ms): in each step, and in five; the network's are in five alone.
_DELAYS_MS = {"sleep": (30, 240), "data": (30, 240), "network": (240, 240)}
_STEPS_OF_RARE = 5
_IN_EACH_STEP = set(CAUSES) - {"clean", "network", "save"}
GPU_RUNS = {
    "first": FIXTURES / "nccl-first",
    "second": FIXTURES / "nccl",
    "third": FIXTURES / "nccl-third",
    "fourth": FIXTURES / "nccl-fourth",
    "fifth": FIXTURES / "nccl-fifth",
    "sixth": FIXTURES / "nccl-sixth",
    "seventh": FIXTURES / "nccl-seventh",
    "eighth": FIXTURES / "nccl-eighth",
    "ninth": FIXTURES / "nccl-ninth",
    "tenth": FIXTURES / "nccl-tenth",
}
#: Those in which both ranks have a part of one GPU.
ON_ONE_GPU = ("eighth", "ninth", "tenth")
#: The late rank, where it was another one.
LATE_RANKS = {"fourth": 0, "sixth": 0, "ninth": 0}


@dataclass(frozen=True)
class Answer:
    """What is said of one run.

    Attributes:
        case: ``STRATEGY.CAUSE`` or ``STRATEGY.CAUSE.rare``.
        first: The answer that is compared; absent for none.
        is_right: Whether rank and cause are those that were put in.
        put_in_ns: The delay that was put into the compared steps; absent where only its cause is known.
    """

    case: str
    first: Lateness | None
    is_right: bool
    put_in_ns: int | None = None

    @property
    def says_when(self) -> bool:
        """Whether a right answer says rightly that the rank is late in most steps, or in some."""
        _, cause, *rest = self.case.split(".")
        return self.first is not None and self.first.is_persistent == (cause in _IN_EACH_STEP and "rare" not in rest)

    @property
    def relative_cost(self) -> float | None:
        """The cost of a right answer over the delay that was put in."""
        if self.first is None or not self.is_right or not self.put_in_ns:
            return None
        return self.first.cost_ns / self.put_in_ns


def all_cases() -> list[str]:
    """Every case; stages of a pipeline cannot have work that differs by sequences or micro-batches."""
    cases = [f"{strategy}.{cause}" for strategy in STRATEGIES for cause in CAUSES if not cause[-1].isdigit()]
    cases += [f"{strategy}.{cause}.rare" for strategy in STRATEGIES for cause in RARE]
    return [case for case in cases if case not in {"pipeline.work", "pipeline.microbatches"}]


def judge(case: str, run: Path, late_rank: int = LATE) -> Answer:
    """Compare the first answer with what was put in."""
    expected = CAUSES[case.split(".")[1]]
    result = analyze(read_run(run))
    by_load = {Cause.CONTENTION, Cause.NETWORK} - {expected}
    lateness = tuple(late for late in result.lateness if late.cause not in by_load)
    first = lateness[0] if lateness else None
    if expected is None or first is None:
        return Answer(case, first, expected is None and first is None)
    rank = None if expected is Cause.NETWORK else late_rank
    steps = 0 if result.parts is None else len(result.parts.step)
    return Answer(case, first, (first.cause, first.rank) == (expected, rank), put_in_ns(case, steps))


def put_in_ns(case: str, steps: int) -> int | None:
    """The delay that was put into so many compared steps; None where only its cause is known."""
    _, cause, *rest = case.split(".")
    if cause not in _DELAYS_MS:
        return None
    each_ms, rare_ms = _DELAYS_MS[cause]
    is_rare = "rare" in rest or cause not in _IN_EACH_STEP
    return (_STEPS_OF_RARE * rare_ms if is_rare else steps * each_ms) * NS_PER_MS


def judge_folder(folder: Path, late_rank: int = LATE) -> list[Answer]:
    """The answers to all runs of a folder, whose names are those of cases."""
    return [judge(run.name, run, late_rank) for run in sorted(folder.iterdir()) if (run / "ranks").is_dir()]


def to_table(answers: list[Answer], faults: Mapping[str, str] = FAULTS) -> list[str]:
    """What was put in, and what was answered."""
    lines = [
        "| Training | Put in | In | First answer | Rank | When | Steps | Cost (ms) | Delay put in (ms) | Right |",
        "|:---|:---|:---|:---|:---|:---|---:|---:|---:|:---|",
    ]
    for answer in answers:
        strategy, cause, *rest = answer.case.split(".")
        late = answer.first
        cells = ["nothing", *["n/a"] * 4]
        if late is not None:
            rank = "all" if late.rank is None else str(late.rank)
            usual = "most steps" if late.is_persistent else "some"
            cells = [str(late.cause), rank, usual, str(late.steps), f"{late.cost_ns / NS_PER_MS:.0f}"]
        cells.append("n/a" if answer.put_in_ns is None else f"{answer.put_in_ns / NS_PER_MS:.0f}")
        when = "n/a" if cause == "clean" else "five steps" if "rare" in rest or cause == "network" else "each step"
        when = "each sixth step" if cause == "save" else when
        lines.append(
            f"| {strategy} | {faults[cause]} | {when} | {' | '.join(cells)} | {'yes' if answer.is_right else 'no'} |"
        )
    return lines


def count_right(answers: list[Answer]) -> tuple[int, int, int, int]:
    """Right answers and runs with a cause, calm answers and clean runs."""
    injected = [answer for answer in answers if ".clean" not in answer.case]
    clean = [answer for answer in answers if ".clean" in answer.case]
    right, calm = sum(answer.is_right for answer in injected), sum(answer.is_right for answer in clean)
    return right, len(injected), calm, len(clean)


def describe_when(answers: list[Answer]) -> list[str]:
    """How many right answers say rightly when the rank is late, and how near costs are to known delays."""
    right = [answer for answer in answers if answer.is_right and ".clean" not in answer.case]
    timely = sum(answer.says_when for answer in right)
    wrong = ", ".join(f"`{answer.case}`" for answer in right if not answer.says_when)
    ratios = sorted(ratio for answer in right if (ratio := answer.relative_cost) is not None)
    lines = [f"- Of {len(right)} right answers {timely} also say rightly whether that was in most steps or in some."]
    lines += [f"  The others are {wrong}."] if wrong else []
    if ratios:
        lines.append(
            f"- Where the delay is known, the cost is {ratios[0]:.2f} to {ratios[-1]:.2f} times it, "
            f"{median(ratios):.2f} in the median of {len(ratios)}."
        )
    return lines


def describe_first(first: tuple[str, int, int, int] | None) -> str:
    """A first answer in words: cause, rank, steps, nanoseconds."""
    return "nothing" if first is None else f"{first[0]}, rank {first[1]}, {first[3] / NS_PER_MS:.0f} ms"


def describe_gpus() -> list[str]:
    """The part of the report on GPUs."""
    lines = [
        "",
        "## On GPUs",
        "",
        "Two H200 with NCCL (torch 2.11), a GPT of 100 million parameters in bf16, up to 300 steps. The first",
        "seven runs showed rules that were wrong on GPUs and were mended after their records had been seen: their",
        "tables have what the rules answer now, which tests nothing. What two GPUs of one host cannot have is a slow",
        "network. A lower clock was not put in either: that needs rights over the GPU. Instead a test lets the sampler",
        "read one from a library that stands for the driver's, beside these records of kernels that took longer.",
    ]
    lines += describe_runs([name for name in GPU_RUNS if name not in ON_ONE_GPU], FAULTS)
    return [*lines, "", *IN_PARTS, *describe_runs(ON_ONE_GPU, {**FAULTS, **FAULTS_IN_PARTS})]


def describe_runs(names: Sequence[str], faults: Mapping[str, str]) -> list[str]:
    """Some runs on GPUs: what was wrong before rules were mended, and what they answer now."""
    all_answers = {name: judge_folder(GPU_RUNS[name], LATE_RANKS.get(name, LATE)) for name in names}
    lines = ["", *describe_when([answer for answers in all_answers.values() for answer in answers])]
    for name in names:
        folder = GPU_RUNS[name]
        before = json.loads((folder / "before.json").read_text())
        injected = [row for row in before if ".clean" not in row["case"]]
        clean = [row for row in before if ".clean" in row["case"]]
        wrong = [f"- `{row['case']}`: {describe_first(row['first'])}" for row in before if not row["right"]]
        right, calm = (sum(row["right"] for row in rows) for rows in (injected, clean))
        lines += [
            "",
            f"In the {name} run rank and cause were right in {right} of {len(injected)} trainings, and nothing was",
            f"named in {calm} of {len(clean)} clean ones.{' Wrong were:' if wrong else ''}",
            "",
            *([*wrong, ""] if wrong else []),
            *MENDED[name],
            "",
            *to_table(all_answers[name], faults),
        ]
    return lines


def to_markdown(answers: list[Answer]) -> str:
    """The report."""
    right, injected, calm, clean = count_right(answers)
    lines = [
        "# Late ranks in trainings with injected causes",
        "",
        "Two ranks trained a small GPT over gloo on a machine with two processors that others used, too, and rank 1",
        "was late on purpose in each step, or in a few. `perfscope stragglers` says who was late, what it cost and why",
        "([docs/stragglers.md](../docs/stragglers.md)). Contention by processes that have nothing to do with the",
        "training is named as well, and so is an exchange whose threads had no processor; both are left out here, but",
        "where they are what was put in.",
        "`python -m benchmarks.stragglers` writes this page from the records in",
        "[fixtures/stragglers](../fixtures/stragglers/README.md).",
        "",
        *to_table(answers),
        "",
        f"- Rank and cause are right in {right} of {injected} runs ({right / max(injected, 1):.0%}).",
        f"- In {calm} of {clean} clean runs nothing is named but contention and what it does to the exchange.",
        *describe_when(answers),
        "  Both ranks lost their processors to other work: where the other rank was as late, a delay cost nothing.",
        "- The machine was so busy that a step of 20 ms took 100 to 300 ms. Single delays of 30 ms and exchanges that",
        "  took 60 ms longer were then not always found: they are shorter than a quarter of a step. In five steps the",
        "  delay is therefore 240 ms.",
        "- In `deepspeed.contention.rare` other work on the machine took rank 0's processor for longer, 1.6 s in 19",
        "  steps, than what was put in took rank 1's: that is the third answer, 0.7 s in steps 9, 14, 15 and 22.",
        *describe_again(),
        *describe_gpus(),
    ]
    return "\n".join(lines) + "\n"


def judge_fixtures() -> list[Answer]:
    """The answers to all trainings over gloo that were kept."""
    return [judge(case, FIXTURES / case) for case in all_cases() if (FIXTURES / case).is_dir()]


def keep_again(runs: Path, kept: Path) -> None:
    """Keep the answers to trainings whose records are not kept: another matrix, and more of contention in few steps."""
    rows = []
    for folder in sorted(runs.iterdir()):
        for answer in judge_folder(folder) if folder.is_dir() else ():
            lateness = analyze(read_run(folder / answer.case)).lateness
            named = [late for late in lateness if late.rank == LATE and not late.is_persistent]
            rows.append(
                {
                    "round": folder.name,
                    "case": answer.case,
                    "first": describe_first(to_row(answer)),
                    "right": answer.is_right,
                    "names_some": any(late.cause is Cause.CONTENTION for late in named),
                }
            )
    kept.write_text(json.dumps(rows, indent=1) + "\n")


def describe_again() -> list[str]:
    """The answers to trainings that no rule was changed after."""
    rows = json.loads((FIXTURES / "again.json").read_text())
    matrix = [row for row in rows if row["round"] == "a"]
    injected = [row for row in matrix if ".clean" not in row["case"]]
    calm = sum(row["right"] for row in matrix if ".clean" in row["case"])
    last = [row for row in rows if row["round"] == "last"]
    more = [row for row in rows if row["round"] not in {"a", "last"}]
    wrong = [f"- `{row['case']}`: {row['first']}" for row in injected if not row["right"]]
    return [
        "",
        "## A second matrix",
        "",
        "The rules for processors have seen the records above. Trained once more, beside so much other work that up to",
        f"twenty threads wanted two processors, {sum(row['right'] for row in injected)} of {len(injected)} first "
        f"answers are right, and {calm} of {len(matrix) - len(injected)}",
        "clean runs are clean. No rule was changed for it, and its records are not kept. Wrong are:",
        "",
        *wrong,
        "",
        "Trained again after rules for GPUs and for a thread that launches backward passes had been changed, "
        f"{count_rows(last)}.",
        "",
        f"Of {len(more)} more trainings with contention in five steps, six of each strategy, the first answer to "
        f"{sum(row['right'] for row in more)} is rank {LATE}:",
        "other work takes the other rank's processor in most steps, for longer than what was put in takes this one's",
        f"in five. That rank {LATE} has no processor in some steps is among the answers to "
        f"{sum(row['names_some'] for row in more)}.",
    ]


def count_rows(rows: Sequence[Mapping[str, Any]]) -> str:
    """How many kept answers are right, in words."""
    injected, clean = ([row["right"] for row in rows if (".clean" in row["case"]) == is_clean] for is_clean in (0, 1))
    return (
        f"{sum(injected)} of {len(injected)} first answers are right, and {sum(clean)} of {len(clean)} clean runs clean"
    )


def to_row(answer: Answer) -> tuple[str, int, int, int] | None:
    """A first answer as it is kept."""
    late = answer.first
    return None if late is None else (str(late.cause), -1 if late.rank is None else late.rank, late.steps, late.cost_ns)


def keep_gpu_runs(runs: Path, folder: Path, late_rank: int) -> None:
    """Keep runs of GPUs, and what is said of them when they are first looked at."""
    answers = judge_folder(runs, late_rank)
    for answer in answers:
        keep_fixture(runs / answer.case, folder / answer.case)
    before = folder / "before.json"
    if not before.exists():
        rows = [
            {
                "case": answer.case,
                "first": answer.first
                and [str(answer.first.cause), answer.first.rank, answer.first.steps, answer.first.cost_ns],
                "right": answer.is_right,
                "steps": int(max(len(table) for table in read_run(runs / answer.case).steps)),
            }
            for answer in answers
        ]
        before.write_text(json.dumps(rows, indent=1) + "\n")
    sys.stdout.write("\n".join(to_table(answers)) + "\n")


def main() -> None:
    """Train, judge, and print the report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=Path, help="runs that were trained already")
    parser.add_argument("--fixtures", action="store_true")
    parser.add_argument("--report", action="store_true", help="write the report from what was kept")
    parser.add_argument("--again", type=Path, help="folders of more runs: keep the answers to them alone")
    parser.add_argument("--gpu", choices=GPU_RUNS, help="the runs are of GPUs: keep them as fixtures, and judge them")
    options = parser.parse_args()
    if options.gpu is not None:
        keep_gpu_runs(options.runs, GPU_RUNS[options.gpu], LATE_RANKS.get(options.gpu, LATE))
        return
    if options.again is not None:
        keep_again(options.again, FIXTURES / "again.json")
        return
    if options.report:
        REPORT.write_text(to_markdown(judge_fixtures()))
        return
    cases = all_cases()
    with tempfile.TemporaryDirectory() as folder:
        runs = options.runs
        if runs is None:
            runs = Path(folder)
            subprocess.run([sys.executable, str(SCRIPT), "--out", str(runs), *cases], check=True)
        cases = [case for case in cases if (runs / case / "ranks").is_dir()]
        answers = [judge(case, runs / case) for case in cases]
        if options.fixtures:
            for case in cases:
                keep_fixture(runs / case, FIXTURES / case)
            REPORT.write_text(to_markdown(answers))
    sys.stdout.write(to_markdown(answers))


if __name__ == "__main__":
    main()
