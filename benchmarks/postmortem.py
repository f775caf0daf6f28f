"""Whether a post-mortem names the right rank and the right reason: faults put into trainings on purpose.

Run: ``python -m benchmarks.postmortem [--json FILE] [--ranks 2,4] [--cuda] [--only ddp:skip,...]``. Each case starts
a training below ``perfscope profile``, in which one rank does something wrong at step 12; the job is ended as soon as
all ranks have noticed the stall, or ends by itself. Then ``perfscope postmortem`` reads the run, and knows nothing
else. The clean trainings must be blamed for nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event

from tabulate import tabulate

from benchmarks.stopping_training import FRAMEWORKS
from perfscope.analyzers.postmortem.diagnosis import Diagnosis, diagnose
from perfscope.analyzers.postmortem.places import Reason
from perfscope.errors import PerfscopeError
from perfscope.sources.postmortem import read_post_mortem

ROOT = Path(__file__).resolve().parent.parent
FAULTS = {
    "skip": Reason.SKIPPED,
    "size": Reason.SIZE,
    "order": Reason.ORDER,
    "group": Reason.GROUP,
    "crash": Reason.CRASH,
    "host": Reason.HOST,
    "loader": Reason.LOADING,
    "device": Reason.DEVICE,
    "memory": Reason.MEMORY,
    "clean": Reason.NOTHING,
}
_NEEDS_DEVICE = ("device",)
_STALL_S = 3
#: A stall before this step is a slow start, on a machine that does much else.
_FIRST_STEP = 5
#: From when its first rank has begun.
_LONGEST_S = 100
_AFTER_STALL_S = 1.5
#: Set when this process is asked to end: its trainings are ended, too, and no other is begun.
_STOP = Event()


@dataclass(frozen=True)
class Case:
    """One training: how many ranks, and which of them does what."""

    framework: str
    fault: str
    ranks: int
    rank: int


@dataclass(frozen=True)
class Result:
    """What the post-mortem of a training says, and whether rank and reason are right."""

    framework: str
    fault: str
    ranks: int
    rank: int
    reason: str
    blamed: tuple[int, ...]
    text: str
    line: str | None
    seconds: float
    is_right: bool


def cases(ranks: Sequence[int], *, cuda: bool, only: Sequence[str], shift: int = 0) -> Iterator[Case]:
    """All cases; the faulty ranks take turns, from ``shift`` on."""
    number = shift
    for size in ranks:
        for framework in FRAMEWORKS:
            for fault in FAULTS:
                number += 1
                is_wanted = not only or f"{framework}:{fault}" in only or fault in only or framework in only
                if is_wanted and (cuda or fault not in _NEEDS_DEVICE):
                    yield Case(framework, fault, size, number % size)


def training_words(case: Case, *, cuda: bool) -> list[str]:
    """The script of a training, with what stops it."""
    script = str(ROOT / "benchmarks" / "stopping_training.py")
    return [script, case.framework, case.fault, "--rank", str(case.rank), *(["--cuda"] if cuda else [])]


def run_case(case: Case, folder: Path, *, cuda: bool) -> Path:
    """Run one training to its end, or until all of its ranks have noticed that it stalls, or this process is to end."""
    run = folder / f"{case.framework}-{case.fault}-{case.ranks}"
    words = [sys.executable, "-m", "perfscope", "--quiet", "profile", "-o", str(run), "--steps", "1000", "--exec"]
    words += ["--stall-seconds", str(_STALL_S), "--nvml-hz", "0", "--"]
    words += [sys.executable, str(ROOT / "benchmarks" / "start_ranks.py"), str(case.ranks)]
    words += training_words(case, cuda=cuda)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), *_inherited_path()])}
    if cuda:
        environment.setdefault("TORCH_NCCL_ENABLE_TIMING", "1")  # else no dump tells which device has not begun
    with (folder / f"{run.name}.log").open("wb") as log:
        process = subprocess.Popen(words, env=environment, stdout=log, stderr=log, start_new_session=True)
        end_s = time.monotonic() + _LONGEST_S
        has_begun = False
        try:
            while process.poll() is None and time.monotonic() < end_s and not _STOP.is_set():
                time.sleep(0.2)
                if not has_begun and any(run.glob("ranks/*/rank.json")):
                    has_begun, end_s = True, time.monotonic() + _LONGEST_S
                if len(list(run.glob("ranks/*/incidents.jsonl"))) == case.ranks and _have_stalled(run):
                    time.sleep(_AFTER_STALL_S)
                    break
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            _end_ranks(run)
    time.sleep(0.5)  # the process that writes down how ranks ended
    return run


def _inherited_path() -> list[str]:
    return [path for path in (os.environ.get("PYTHONPATH"),) if path]


def _have_stalled(run: Path) -> bool:
    """Whether the last thing that each rank has noticed is a stall in the midst of the training."""
    records = [json.loads(path.read_text().splitlines()[-1]) for path in run.glob("ranks/*/incidents.jsonl")]
    return all(record["kind"] == "stall" and record["step"] >= _FIRST_STEP for record in records)


def _end_ranks(run: Path) -> None:
    """End ranks that outlive their launcher, each by its own id."""
    for path in run.glob("ranks/*/rank.json"):
        record = json.loads(path.read_bytes())
        try:
            os.kill(record["pid"], signal.SIGKILL)
        except ProcessLookupError:
            continue


def judge(case: Case, run: Path, seconds: float) -> Result:
    """Compare the post-mortem with what was done."""
    try:
        diagnosis = diagnose(read_post_mortem(run))
    except PerfscopeError as error:
        diagnosis = Diagnosis(Reason.UNKNOWN, (), error.problem)
    expected = FAULTS[case.fault]
    blamed = () if expected is Reason.NOTHING else (case.rank,)
    is_right = diagnosis.reason is expected and diagnosis.ranks == blamed
    line = None if diagnosis.line is None else f"{Path(diagnosis.line.file).name}:{diagnosis.line.line}"
    return Result(
        *(case.framework, case.fault, case.ranks, case.rank, str(diagnosis.reason), diagnosis.ranks, diagnosis.text),
        line=line,
        seconds=seconds,
        is_right=is_right,
    )


def to_markdown(results: Sequence[Mapping[str, object]]) -> str:
    """The matrix: of each fault in each framework, how many trainings were explained rightly."""
    rows = []
    for fault, expected in FAULTS.items():
        tried = [[r for r in results if (r["fault"], r["framework"]) == (fault, name)] for name in FRAMEWORKS]
        cells = [f"{sum(bool(r['is_right']) for r in cell)} of {len(cell)}" if cell else "n/a" for cell in tried]
        rows.append((fault, str(expected), *cells))
    table: str = tabulate(
        rows, headers=("Fault", "Expected reason", *FRAMEWORKS), tablefmt="pipe", disable_numparse=True
    )
    return table


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: _STOP.set())
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--shift", type=int, default=0, help="which rank the first case's is")
    parser.add_argument("--keep", type=Path)
    arguments = parser.parse_args()
    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="postmortem-"))
    folder.mkdir(parents=True, exist_ok=True)
    only = [word for word in arguments.only.split(",") if word]
    sizes = [int(word) for word in arguments.ranks.split(",")]
    wanted = list(cases(sizes, cuda=arguments.cuda, only=only, shift=arguments.shift))

    def measure(case: Case) -> Result:
        began_s = time.monotonic()
        run = run_case(case, folder, cuda=arguments.cuda)
        result = judge(case, run, round(time.monotonic() - began_s, 1))
        print(
            f"{'right' if result.is_right else 'WRONG'} {case}: {result.reason} {result.blamed}: {result.text}",
            flush=True,
        )
        return result

    with ThreadPoolExecutor(arguments.at_once) as pool:
        results = list(pool.map(measure, wanted))
    right = sum(result.is_right for result in results)
    rows = [(*list(asdict(result).values())[:6], result.line, result.seconds, result.is_right) for result in results]
    headings = ["framework", "fault", "ranks", "rank", "reason", "blamed", "line", "s", "right"]
    print(tabulate(rows, headers=headings))
    print(f"{right} of {len(results)} are right")
    if arguments.json:
        document = {"backend": "nccl" if arguments.cuda else "gloo", "results": [asdict(result) for result in results]}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    if arguments.keep is None:
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(0 if right >= 0.95 * len(results) else 1)


if __name__ == "__main__":
    main()
