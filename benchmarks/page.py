"""How large the page of a run is, and how long a browser takes to open it, by the number of ranks.

    python -m benchmarks.page --folder /tmp/bench [--ranks 1,16,256,4096] [--write FIGURES.json]
    python -m benchmarks.page --report FIGURES.json [--write FILE.md]

Runs of made-up times are written, `perfscope page` makes their pages in fresh processes, and headless Chromium opens
each one several times, offline: until the timeline is drawn. Both wall time and the time of the page's thread on a
processor are measured, because the wall time also shows what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from benchmarks.processes import Tool, machine
from benchmarks.synthetic_runs import SyntheticRun, write_run
from perfscope.constants import MB, MS_PER_S

_LAYERS = 100
#: A job of more ranks has fewer kernels in its traces, or writing them would take longer than all else.
_MOST_RANKS_WITH_LAYERS, _FEW_LAYERS = 256, 12
_ROUNDS = 7
_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
PROMISED_S, PROMISED_MB, PROMISED_RANKS = 2.0, 5.0, 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="for the runs")
    parser.add_argument("--ranks", default="1,16,256,4096")
    parser.add_argument("--report", type=Path, metavar="FIGURES.json", help="write figures as a table")
    parser.add_argument("--write", type=Path, help="a file for the answer")
    options = parser.parse_args()
    if options.report:
        text = document(json.loads(options.report.read_text()))
    elif options.folder is None:
        raise SystemExit("--folder says where the runs go")
    else:
        text = json.dumps(measure(options.folder, [int(word) for word in options.ranks.split(",")]), indent=1) + "\n"
    if options.write:
        options.write.write_text(text)
    print(text)


def measure(folder: Path, counts: list[int]) -> dict[str, Any]:
    """Make and open the page of each job."""
    where = machine()
    jobs = {ranks: _make_page(folder, ranks) for ranks in counts}
    path = shutil.which("chromium") or shutil.which("google-chrome")
    assert path is not None, "no chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_FLAGS)
        version = browser.version
        for _ in range(_ROUNDS):
            for ranks, job in jobs.items():
                opened = _open(browser, folder / f"{ranks}.html")
                job["wall_ms"].append(opened["wall_ms"])
                job["thread_ms"].append(opened["thread_ms"])
        browser.close()
    return {"machine": where, "browser": version, "jobs": {str(ranks): job for ranks, job in jobs.items()}}


def _make_page(folder: Path, ranks: int) -> dict[str, Any]:
    layers = _LAYERS if ranks <= _MOST_RANKS_WITH_LAYERS else _FEW_LAYERS
    run, page = folder / f"run{ranks}", folder / f"{ranks}.html"
    if not run.exists():
        write_run(run, SyntheticRun(ranks=ranks, layers=layers))
    words = [sys.executable, "-m", "perfscope", "page", str(run), "-o", str(page), "--workers", "1"]
    tool = Tool("", words)
    tool.run()
    assert not tool.problem, tool.problem
    events = (3 * layers + 4 * (ranks > 1)) * 2
    return {
        "device_events": events * ranks, "bytes": page.stat().st_size, "make_cpu_s": tool.cpu_s[0],
        "make_peak_mb": tool.peak_mb[0], "wall_ms": [], "thread_ms": [],
    }  # fmt: skip


def _open(browser: Browser, page_path: Path) -> dict[str, float]:
    """From the navigation to the drawn timeline, in milliseconds."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, offline=True)
    page = context.new_page()
    session = context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.goto(page_path.as_uri(), wait_until="commit")
    page.wait_for_selector("html[data-ready]", state="attached", timeout=120_000)
    wall_ms = page.evaluate("Number(document.documentElement.dataset.readyMs)")
    metrics = {metric["name"]: metric["value"] for metric in session.send("Performance.getMetrics")["metrics"]}
    context.close()
    return {"wall_ms": round(wall_ms, 1), "thread_ms": round(metrics["TaskDuration"] * MS_PER_S, 1)}


def document(figures: Mapping[str, Any]) -> str:
    """The figures as a table."""
    where = figures["machine"]
    lines = [
        f"{where['processors']} processors ({where['model']}), Python {where['python']}, Chromium "
        f"{figures['browser']}, load {where['load_before']} before; the best of {_ROUNDS} rounds.",
        "",
        "| Ranks | Device events | Page (MB) | Opened in (s) | Of which on a processor (s) | "
        "Made in processor time (s) | Peak memory (MB) |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for ranks, job in figures["jobs"].items():
        wall_s, thread_s = (min(job[key]) / MS_PER_S for key in ("wall_ms", "thread_ms"))
        lines.append(
            f"| {int(ranks):,} | {job['device_events']:,} | {job['bytes'] / MB:.2f} | {wall_s:.2f} | {thread_s:.2f} | "
            f"{job['make_cpu_s']:.1f} | {job['make_peak_mb']:.0f} |"
        )
    largest = figures["jobs"][str(PROMISED_RANKS)]
    lines += [
        "",
        f"Promised for {PROMISED_RANKS} ranks: opened in {PROMISED_S:.0f} s, at most {PROMISED_MB:.0f} MB. Measured: "
        f"{min(largest['wall_ms']) / MS_PER_S:.2f} s, {largest['bytes'] / MB:.2f} MB.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
