"""Whether every rank opens a window that was asked for at the same step: many windows in one running job.

Run: ``python -m benchmarks.triggers [--tries 100] [--ranks 4] [--json FILE]``. The ranks train over gloo on this
machine; each try asks as `perfscope trigger` does, and counts where every rank has written a window on the same steps.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from perfscope.collect.parts import LocalPart
from perfscope.collect.running import look_at

ROOT = Path(__file__).resolve().parent.parent
_STEPS = 10**6
_LONGEST_START_S = 90
_FIRST_STEPS = 20


def start(run: Path, ranks: int) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "perfscope", "--quiet", "profile", "-o", str(run), "--exec", "--nvml-hz", "0", "--"]
    words += [sys.executable, str(ROOT / "benchmarks" / "start_ranks.py"), str(ranks)]
    words += [str(ROOT / "benchmarks" / "stopping_training.py"), "ddp", "clean", "--steps", str(_STEPS)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def steps_by_now(run: Path) -> int:
    return min((rank.steps_by_now for rank in look_at(LocalPart(str(run))).ranks), default=0)


def ask(run: Path) -> tuple[int, int] | None:
    """Ask for a window; returns its steps where every rank has planned it."""
    words = [sys.executable, "-m", "perfscope", "trigger", str(run), "--steps", "1", "--format", "json"]
    ended = subprocess.run(
        words, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    answer = json.loads(ended.stdout) if ended.stdout else {}
    print(ended.returncode, answer.get("first"), ended.stderr.strip(), flush=True)
    return (answer["first"], answer["last"]) if ended.returncode == 0 else None


def windows(run: Path) -> list[set[tuple[int, int]]]:
    """The windows that each rank has written."""
    ranks = []
    for file in sorted(run.glob("ranks/*/events.jsonl")):
        events = [json.loads(line) for line in file.read_text().splitlines()]
        ranks.append({(event["first_step"], event["last_step"]) for event in events if event["kind"] == "window"})
    return ranks


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tries", type=int, default=100)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="triggers-"))
    run = folder / "RUN"
    process = start(run, arguments.ranks)
    asked = []
    try:
        due_s = time.monotonic() + _LONGEST_START_S
        while time.monotonic() < due_s and (not (run / "run.json").is_file() or steps_by_now(run) < _FIRST_STEPS):
            time.sleep(0.5)
        for _ in range(arguments.tries):
            window = ask(run)
            asked.append(window)
            while window is not None and steps_by_now(run) <= window[1] + 2:
                time.sleep(0.2)
        time.sleep(2)
        written = windows(run)
    finally:
        process.terminate()
        process.wait()
    same = sum(window is not None and all(window in ranks for ranks in written) for window in asked)
    print(f"{same} of {len(asked)} windows were opened at the same steps by all of {len(written)} ranks")
    if arguments.json:
        document = {"tries": len(asked), "ranks": len(written), "same": same}
        arguments.json.write_text(json.dumps(document) + "\n")
    shutil.rmtree(folder, ignore_errors=True)
    sys.exit(0 if same == len(asked) else 1)


if __name__ == "__main__":
    main()
