"""Partials beside traces: how much faster an analysis is with them, and what the compressor and training pay for them.

    python -m benchmarks.partials --folder /tmp/bench [--ranks 256] [--large TRACE.json.gz] [--write FIGURES.json]
    python -m benchmarks.partials --report FIGURES.json [--write FILE.md]

Real traces of two ranks on H200 (13 MB of JSON each) are copied and renumbered, as in ``benchmarks.many_traces``. All
ratios are of processor time, in turns, because they are asked for on machines that do other work, too.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.many_traces import SOURCES, copies
from benchmarks.processes import Tool, best, machine, take_turns
from perfscope.engine.execution import Execution
from perfscope.engine.partials_at_capture import store_beside, task_at_capture
from perfscope.engine.registry import BUILT_IN, Reads
from perfscope.engine.taking import Taking, answer_each
from perfscope.engine.tasks import Task
from perfscope.engine.windows import TraceFiles
from perfscope.hooks.profiler import compress, compressors
from perfscope.tables.trace import Events
from perfscope.wire.traces import partials_path

FASTER, DEARER = 50, 1.3
RANKS_OF_A_HOST, LARGE_OF_A_HOST = 8, 4
#: The level of zlib before hosts measured what they compress.
LEVEL_BEFORE = 5
ROUNDS = 3
#: Beside each round of a command of seconds, rounds of one of tenths of a second.
QUICK_ROUNDS = 5
TURNS, TURN_S = 6, 3.0
SPIN = """
import time
until, steps = time.monotonic() + {seconds}, 0
while time.monotonic() < until:
    for number in range(100_000):
        pass
    steps += 1
print(steps / time.process_time(), steps)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="for the copies")
    parser.add_argument("--ranks", type=int, default=256)
    parser.add_argument("--large", type=Path, help="a large trace for the compressor, compressed")
    parser.add_argument("--report", type=Path, metavar="FIGURES.json", help="write figures as tables")
    parser.add_argument("--write", type=Path, help="a file for the answer")
    options = parser.parse_args()
    if options.report:
        text = document(json.loads(options.report.read_text()))
    else:
        if options.folder is None:
            raise SystemExit("--folder says where the copies go")
        text = json.dumps(measure(options.folder, options.ranks, options.large), indent=1) + "\n"
    if options.write:
        options.write.write_text(text)
    print(text)


def measure(folder: Path, ranks: int, large: Path | None) -> dict[str, Any]:
    """Measure the answers, the map step, the compressor and the training."""
    where = machine()
    job = copies(folder / f"partials{ranks}", ranks)
    traces = sorted(str(path) for path in job.glob("*.json.gz"))
    for trace in traces:
        if not Path(partials_path(trace)).exists():
            plain = Path(trace.removesuffix(".gz"))
            plain.write_bytes(gzip.decompress(Path(trace).read_bytes()))
            compress.compress(str(plain))  # as hosts leave it
        store_beside(TraceFiles(trace), task_at_capture(job))  # those of other code are not taken
    compressed = {"13 MB": SOURCES[0], **({} if large is None else {"large": large})}
    return {
        "machine": where,
        "ranks": ranks,
        "bytes": {
            "traces": sum(Path(trace).stat().st_size for trace in traces),
            "partials": sum(Path(partials_path(trace)).stat().st_size for trace in traces),
            "share": [_share(source, folder) for source in compressed.values()],
        },
        "map_cpu_s": _map_step(traces),
        "answers": _answers(job),
        "compressor": {
            name: _compressor(source, folder / "compressor", RANKS_OF_A_HOST if name == "13 MB" else LARGE_OF_A_HOST)
            for name, source in compressed.items()
        },
        "training": _training(folder / "training"),
    }


def _share(source: Path, folder: Path) -> float:
    """The size of the partials of a trace as it was compressed where it was made, as a share of the trace's."""
    copy = folder / f"share_{source.name}"
    shutil.copyfile(source, copy)
    store_beside(TraceFiles(str(copy)), task_at_capture(folder))
    return Path(partials_path(str(copy))).stat().st_size / copy.stat().st_size


def _map_step(traces: Sequence[str]) -> dict[str, float]:
    """Processor seconds of each trace in the map step: read, and taken from partials."""
    names = [
        analyzer.name
        for analyzer in BUILT_IN
        if analyzer.reads is not Reads.RUN and analyzer.partials_of is None and analyzer.is_default
    ]
    files = [TraceFiles(trace) for trace in traces]
    seconds: dict[str, list[float]] = {"traces": [], "partials": []}
    for _ in range(ROUNDS):
        for name, chosen in (("traces", files[: len(files) // 8]), ("partials", files)):
            began = time.process_time()
            taking = Taking(is_fresh=name == "traces")
            answers = answer_each(Execution(), chosen, Task(tuple(names), Events.GRIDS), {}, taking)
            count = sum(1 for answer in answers if answer.measured.partials)
            assert count == len(chosen)
            assert taking.taken == (0 if name == "traces" else len(chosen))
            seconds[name].append((time.process_time() - began) / len(chosen))
    return {name: min(rounds) for name, rounds in seconds.items()}


def _answers(job: Path) -> dict[str, Any]:
    """The whole command, with partials and without, and whether the answers are the same."""
    words = [sys.executable, "-m", "perfscope", "analyze", "--format", "json", "--engine", "serial", str(job)]
    tools = {"traces": Tool("traces", [*words, "--fresh"]), "partials": Tool("partials", words)}
    printed = {name: tool.run() for name, tool in tools.items()}
    for _ in range(ROUNDS - 1):
        take_turns([tools["traces"]], 1)
        take_turns([tools["partials"]], QUICK_ROUNDS)
    digests = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in printed.items()}
    return {"tools": {name: tool.data() for name, tool in tools.items()}, "sha256": digests}


def _compressor(source: Path, folder: Path, traces: int) -> dict[str, Any]:
    """Processor seconds of the compression of traces, as it was before and is, and of the process that measures them.

    Each rank compresses its own trace; one process measures those of all ranks of a host.
    """
    text = gzip.decompress(source.read_bytes())
    seconds: dict[str, list[float]] = {"before": [], "compress": [], "measure": []}
    sizes = {}
    for _ in range(ROUNDS):
        for name, rounds in seconds.items():
            if name != "measure":
                paths = _write(folder, text, traces)
            tools = [Tool(name, words) for words in commands(name, paths)]
            for tool in tools:
                tool.run()
            rounds.append(sum(best(tool.data(), "cpu_s") or 0.0 for tool in tools))
            if name != "measure":
                sizes[name] = Path(f"{paths[0]}.gz").stat().st_size
        assert all(Path(partials_path(str(path))).exists() for path in paths)
    return {"traces": traces, "mb_of_json_each": round(len(text) / 1e6), "cpu_s": seconds, "bytes": sizes}


def _write(folder: Path, text: bytes, traces: int) -> list[Path]:
    """The traces of a host as windows leave them."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "traces").mkdir(parents=True)
    paths = [folder / "traces" / f"vm_{number}.1.pt.trace.json" for number in range(traces)]
    for path in paths:
        path.write_bytes(text)
    return paths


def commands(name: str, paths: Sequence[Path], *, together: bool = False) -> list[list[str]]:
    """The processes of a host: one for each trace, or one for all of them, as where a rank has several."""
    python = [sys.executable, "-I", "-S"]
    script = Path(compress.__file__).resolve()
    load = f"import os, sys; sys.path.append({str(script.parent)!r}); import compress; "
    folders = compressors.list_folders()  # as the training process has them
    if name == "compress":
        code = load + f"os.environ['PERFSCOPE_MODULES'] = {os.pathsep.join(folders)!r}; "
        code += "compress.start_measuring = lambda traces: None; compress.main(sys.argv[1:])"
        words = [[str(path) for path in paths]] if together else [[str(path)] for path in paths]
        return [[*python, "-c", code, *traces] for traces in words]
    if name == "before":
        # A script with these imports, which each process compiled.
        code = "import contextlib, os, subprocess, sys, typing; module = {'__name__': 'compress'}; "
        code += f"exec(compile(open({str(script)!r}).read(), 'compress', 'exec'), module); os.nice(19); "
        code += f"module['_LEVEL'] = {LEVEL_BEFORE}; module['compress'](sys.argv[1])"
        return [[*python, "-c", code, str(path)] for path in paths]
    code = load.replace("import ", "import gc, ", 1) + "compress.become_idle(); gc.disable(); "
    code += f"os.environ.update(OPENBLAS_NUM_THREADS='1', OMP_NUM_THREADS='1'); sys.path[:] = {folders!r}; "
    code += "from perfscope.engine.partials_at_capture import main; gc.freeze(); gc.enable(); main(sys.argv[1:])"
    return [[*python, "-c", code, *map(str, paths)]]


def _training(folder: Path) -> dict[str, Any]:
    """Steps of ranks that fill the processors, while nothing else runs and while traces are measured behind them."""
    ranks = os.cpu_count() or 1
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "traces").mkdir(parents=True)
    paths = [folder / "traces" / f"vm_{number}.1.pt.trace.json" for number in range(100)]
    for path in paths:
        shutil.copyfile(SOURCES[0], f"{path}.gz")
    steps: dict[str, list[int]] = {"alone": [], "measured": []}
    for turn in range(TURNS):
        for name in ("alone", "measured") if turn % 2 else ("measured", "alone"):
            behind = None
            if name == "measured":
                behind = subprocess.Popen(commands("measure", paths)[0], start_new_session=True)
            spin = [sys.executable, "-c", SPIN.format(seconds=TURN_S)]
            spinning = [subprocess.Popen(spin, stdout=subprocess.PIPE, text=True) for _ in range(ranks)]
            steps[name].append(sum(int(process.communicate()[0].split()[1]) for process in spinning))
            if behind is not None:
                behind.kill()
                behind.wait()
    return {"ranks": ranks, "steps": steps}


def document(figures: Mapping[str, Any]) -> str:
    """The figures as tables."""
    where, mapped, answers = figures["machine"], figures["map_cpu_s"], figures["answers"]
    whole = {name: best(tool, "cpu_s") or 0.0 for name, tool in answers["tools"].items()}
    same = "the same bytes" if len(set(answers["sha256"].values())) == 1 else "OTHER BYTES"
    steps = figures["training"]["steps"]
    kept = [with_it / alone for with_it, alone in zip(steps["measured"], steps["alone"], strict=True)]
    lines = [
        f"{figures['ranks']} ranks of 13 MB of JSON each, copied and renumbered from two real traces on H200. "
        f"{where['processors']} processors ({where['model']}), Python {where['python']}, load {where['load_before']} "
        "before; processor time, the best round of each.",
        "",
        "| Ratio | Promised | Measured |",
        "|:---|---:|---:|",
        f"| a trace read and measured over its partials taken | at least {FASTER} | "
        f"{mapped['traces'] / mapped['partials']:.0f} |",
        f"| the whole command without partials over with them ({same}) | | {whole['traces'] / whole['partials']:.1f} |",
    ]
    for compressor in figures["compressor"].values():
        cpu = {name: min(seconds) for name, seconds in compressor["cpu_s"].items()}
        of_all = f"of a host with {compressor['traces']} traces of {compressor['mb_of_json_each']} MB"
        both = cpu["compress"] + cpu["measure"]
        larger = compressor["bytes"]["compress"] / compressor["bytes"]["before"]
        lines += [
            f"| compressors and the process that measures over compressors before there was one, {of_all} | at most "
            f"{DEARER} | {both / cpu['before']:.2f} |",
            f"| the same over compressors now, {of_all} | | {both / cpu['compress']:.2f} |",
            f"| size of these traces over before | | {larger:.2f} |",
        ]
    lines += [
        f"| steps of {figures['training']['ranks']} ranks that fill the processors, while traces are measured over "
        f"alone, median of {len(kept)} turns | | {statistics.median(kept):.3f} ({min(kept):.3f} to {max(kept):.3f}) |",
        "",
        f"Partials are {' and '.join(f'{share:.2%}' for share in figures['bytes']['share'])} of the traces that the "
        f"compressor wrote; {figures['ranks']} of them are {figures['bytes']['partials'] / 1e6:.1f} MB, the traces "
        f"{figures['bytes']['traces'] / 1e6:.0f} MB.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
