"""``perfscope doctor``: what works on this machine, how to fix what does not, a demo, and what the machine attains."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from threading import Timer
from typing import Annotated, Any, NamedTuple

import typer
from msgspec.structs import astuple

from perfscope import hooks
from perfscope.commands.options import FormatOption
from perfscope.constants import GB, MB
from perfscope.errors import ExitCode, PerfscopeError, UsageError
from perfscope.files import replace_file
from perfscope.frameworks import WATCHED
from perfscope.hooks.config import Config
from perfscope.hooks.messages import write_message
from perfscope.hooks.profiler.window import SMALLEST_FREE_BYTES
from perfscope.hooks.profiler.window_schedule import find_profiler_variable
from perfscope.hooks.reach import attach, launch
from perfscope.models.hardware import lookup_gpu
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.report import Column, Report, Section, percent_of
from perfscope.sources.ceilings import SCHEMA, parse_ceiling
from perfscope.tables.ceiling import Ceiling
from perfscope.units import format_count


class CheckVerdict(StrEnum):
    """``warn``: something is missing that not everybody needs. ``fail``: a part cannot work."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Check(NamedTuple):
    """One part of perfscope on this machine: what was found, and what the user can do, if anything."""

    part: str
    verdict: CheckVerdict
    finding: str
    fix: str = ""


def ok(part: str, finding: str) -> Check:
    """A part that works."""
    return Check(part, CheckVerdict.OK, finding)


def warn(part: str, finding: str, fix: str = "") -> Check:
    """A part that works in part, or that not everybody needs."""
    return Check(part, CheckVerdict.WARN, finding, fix)


def fail(part: str, finding: str, fix: str) -> Check:
    """A part that cannot work."""
    return Check(part, CheckVerdict.FAIL, finding, fix)


#: Torch loads for minutes from a cold network disk.
_TIMEOUT_S = 180
_RESULT_MARK = "RESULT "


class ProbeResult(NamedTuple):
    """The values that a probe set, by name; or None, and the problem in words."""

    values: Mapping[str, Any] | None
    stderr: str
    problem: str


def probe(lines: str, environment: Mapping[str, str] | None = None) -> ProbeResult:
    """Run lines that put plain values into ``result``, a dictionary."""
    program = (
        f"import json, sys\nresult = {{}}\n{lines}\nsys.stdout.write({_RESULT_MARK!r} + json.dumps(result) + '\\n')\n"
    )
    command = [sys.executable, "-c", program]
    try:
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", env=environment,
            timeout=_TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return ProbeResult(None, "", f"no answer in {_TIMEOUT_S} s")
    results = [line.removeprefix(_RESULT_MARK) for line in ended.stdout.splitlines() if line.startswith(_RESULT_MARK)]
    if results and ended.returncode == 0:
        return ProbeResult(json.loads(results[-1]), ended.stderr, "")
    if ended.returncode < 0:
        return ProbeResult(None, ended.stderr, f"it was killed by {signal.Signals(-ended.returncode).name}")
    errors = [line for line in ended.stderr.splitlines() if line.strip()]
    return ProbeResult(None, ended.stderr, errors[-1] if errors else f"it exited with status {ended.returncode}")


_OLDEST_TORCH = (2, 4)

_PROFILE = """
import os, tempfile
import torch
result["torch"] = torch.__version__
result["cuda"] = torch.version.cuda or torch.version.hip
result["devices"] = torch.cuda.device_count() if torch.cuda.is_available() else 0
activities = [torch.profiler.ProfilerActivity.CPU]
device = "cpu"
if result["devices"]:
    activities.append(torch.profiler.ProfilerActivity.CUDA)
    device = "cuda"
    result["device"] = torch.cuda.get_device_name(0)
    torch.ones(8, device=device).sum().item()
with torch.profiler.profile(activities=activities) as profiler:
    product = torch.ones(64, 64, device=device) @ torch.ones(64, 64, device=device)
    if result["devices"]:
        torch.cuda.synchronize()
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "trace.json")
    profiler.export_chrome_trace(path)
    with open(path) as file:
        events = json.load(file)["traceEvents"]
result["operators"] = sum(event.get("cat") == "cpu_op" for event in events)
result["kernels"] = sum(event.get("cat") == "kernel" for event in events)
"""


def check_torch(environment: Mapping[str, str] | None = None, *, gpus: int = 0) -> list[Check]:
    """Check torch, its devices and its profiler; ``gpus`` are as many as NVML reports."""
    if find_spec("torch") is None:
        fix = "install perfscope into the environment that trains; reading traces and logs needs no torch"
        return [warn("torch", "not installed here: nothing can be captured", fix)]
    result = probe(_PROFILE, environment)
    if result.values is None:
        return [fail("torch", f"a tiny profile failed: {result.problem}", 'try: python -c "import torch"')]
    return list(_judge_profile(result, gpus, environment or os.environ))


def _judge_profile(result: ProbeResult, gpus: int, environment: Mapping[str, str]) -> Iterator[Check]:
    values = result.values or {}
    if tuple(int(number) for number in re.findall(r"\d+", values["torch"])[:2]) < _OLDEST_TORCH:
        oldest = ".".join(map(str, _OLDEST_TORCH))
        finding = f"{values['torch']}; the hooks are tested from {oldest} on"
        yield warn("torch", finding, f"use torch {oldest} or newer")
    else:
        yield ok("torch", values["torch"])
    if values["devices"]:
        yield ok("CUDA", f"{values['devices']} x {values['device']}, CUDA {values['cuda']}")
    elif gpus and values["cuda"]:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        cause = f"CUDA_VISIBLE_DEVICES is {visible!r}" if visible is not None else "the driver may be too old for it"
        yield fail("CUDA", f"torch sees none of {gpus} GPUs", f"{cause}; compare nvidia-smi with torch.version.cuda")
    elif gpus:
        finding = f"this torch is built without CUDA, and there are {gpus} GPUs"
        yield fail("CUDA", finding, "install a CUDA build of torch")
    else:
        yield warn("CUDA", "no GPU here: CPU runs can be captured, and traces of GPUs can be read")
    if values["operators"]:
        yield ok("torch.profiler", f"a tiny profile contains {values['operators']} operators")
    else:
        fix = "install a torch that is built with Kineto"
        yield fail("torch.profiler", "a tiny profile contains no operator", fix)
    if values["kernels"]:
        yield ok("CUPTI", f"a tiny profile contains {values['kernels']} kernels")
    elif values["devices"]:
        messages = [f": {line.strip()}" for line in result.stderr.splitlines() if "CUPTI" in line.upper()]
        variable = find_profiler_variable(environment)
        fix = "another profiler may hold CUPTI: end Nsight, or `dcgmi profile --pause` DCGM; else update the driver"
        if variable is not None:
            fix = f"{variable} is set: run without that profiler, which holds CUPTI"
        yield fail("CUPTI", f"a tiny profile contains no kernel{messages[-1] if messages else ''}", fix)


_DISTRIBUTIONS = {"megatron": "megatron-core", "lightning": "lightning", "pytorch_lightning": "pytorch-lightning"}

_IS_ACTIVE = """
result["active"] = "_perfscope_imports" in sys.modules
result["site"] = getattr(sys.modules.get("sitecustomize"), "__file__", None)
"""
_FIND_SITECUSTOMIZE = """
import importlib.util
spec = importlib.util.find_spec("sitecustomize")
result["site"] = spec.origin if spec else None
"""
_IMPORT = """
import importlib
result["missing"] = []
for name in {names}:
    try:
        importlib.import_module(name)
    except Exception as error:
        result["missing"].append(name)
"""


def check_hook() -> list[Check]:
    """Start Python as a launcher would, and see whether the hook is active in it."""
    with tempfile.TemporaryDirectory(prefix="perfscope-doctor-") as folder:
        config = Config(run_dir=str(Path(folder) / "run"), windows=(), nvml_hz=0)
        environment = launch.build_environment(config, launch.prepare(config), os.environ)
        checks = [_check_activity(probe(_IS_ACTIVE, environment)), *_check_packages(_find_packages(), environment)]
    obstacles = launch.find_obstacles(["deepspeed"])
    return checks + [warn("Hook under deepspeed", obstacle, "see the finding") for obstacle in obstacles]


def _check_activity(result: ProbeResult) -> Check:
    if result.values is None:
        return fail("Hook", f"Python does not start with it: {result.problem}", "report the error in the finding")
    if not result.values["active"]:
        site = result.values["site"]
        fix = "rename it, or take its folder off PYTHONPATH" if site else "start Python without -I, -E and -S"
        return fail("Hook", f"not active: {site or 'no sitecustomize'} runs instead", fix)
    shadowed = (probe(_FIND_SITECUSTOMIZE).values or {}).get("site")
    return ok("Hook", "active in a Python that a launcher starts" + (f"; {shadowed} runs after it" if shadowed else ""))


def _find_packages() -> list[str]:
    """The installed packages that the hooks wrap."""
    return [name for name in sorted({name.split(".")[0] for name in WATCHED}) if find_spec(name) is not None]


def _check_packages(packages: Sequence[str], environment: Mapping[str, str]) -> list[Check]:
    """Import the wrapped modules of all packages in one process: nearly all of them load torch, which takes seconds."""
    result = probe(
        _IMPORT.format(names=sorted(name for name in WATCHED if name.split(".")[0] in packages)), environment
    )
    if result.values is None:
        fix = f"import one after the other: {', '.join(packages)}"
        return [fail("Hooks of frameworks", f"they cannot be imported: {result.problem}", fix)]
    return [_check_package(package, result) for package in packages]


def _check_package(package: str, result: ProbeResult) -> Check:
    """Judge how a package was imported with the hook active, which itself reports what it cannot wrap."""
    part = f"Hooks of {package}"
    try:
        installed = version(_DISTRIBUTIONS.get(package, package))
    except PackageNotFoundError:
        installed = "of unknown version"
    names = [name for name in WATCHED if name.split(".")[0] == package]
    off = re.findall(r"perfscope: (.+? is off): this version of (\S+) differs", result.stderr)
    unhooked = re.findall(r"perfscope: (\S+) is not hooked", result.stderr)
    problems = [f"{text} in {module}" for text, module in off if module in names]
    problems += [f"{module} is not hooked" for module in unhooked if module in names]
    if problems:
        return warn(
            part, f"{installed}: {'; '.join(problems)}", "none: those records will be missing, all others are captured"
        )
    missing = [name for name in (result.values or {})["missing"] if name in names]
    note = f"; not in this version: {', '.join(missing)}" if missing else ""
    return ok(part, f"{installed}: {format_count(len(names) - len(missing), 'module')} wrapped{note}")


_LAUNCHERS = ("torchrun", "deepspeed", "accelerate", "mpirun", "srun")


def check_launchers() -> Check:
    """Find the launchers on PATH; a launcher of another environment starts ranks that the hook may not fit."""
    paths = {name: path for name in _LAUNCHERS if (path := shutil.which(name))}
    if not paths:
        fix = "activate the environment that trains"
        return warn("Launchers", "none on PATH; python itself can always be profiled", fix)
    foreign = [f"{name} at {path}" for name, path in paths.items() if _uses_another_python(Path(path))]
    if foreign:
        fix = f"put {Path(sys.executable).parent} first on PATH, or install perfscope there"
        return warn("Launchers", f"they start another Python: {', '.join(foreign)}", fix)
    missing = [name for name in _LAUNCHERS if name not in paths]
    return ok("Launchers", ", ".join(paths) + (f"; not on PATH: {', '.join(missing)}" if missing else ""))


def _uses_another_python(program: Path) -> bool:
    with program.open("rb") as file:
        first_line = file.readline(512)
    match = re.match(rb"#!\s*(\S*/python[\d.]*)\s*$", first_line)
    return match is not None and Path(os.fsdecode(match[1])).parent != Path(sys.executable).parent


def check_nvml() -> tuple[Check, int]:
    """Run the sampler until its first sample; returns the check, and the number of GPUs."""
    pynvml_folder = attach.find_pynvml()
    if pynvml_folder is None:
        return fail("NVML", "nvidia-ml-py is not installed", "pip install nvidia-ml-py"), 0
    script = Path(hooks.__file__).resolve().parent / "nvml" / "sampler.py"
    command = [sys.executable, "-I", "-S", str(script), pynvml_folder, "10", str(os.getpid())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        watchdog = Timer(_TIMEOUT_S, process.kill)  # a driver may hang
        watchdog.start()
        # The description of the GPUs, and a sample; a note ends it.
        lines = [json.loads(line) for line in islice(process.stdout, 2)]
        watchdog.cancel()
        process.kill()
    note = next((line["note"] for line in lines if "note" in line), None)
    if note is not None or len(lines) < 2:  # noqa: PLR2004 - as above
        return warn("NVML", note or "it did not answer", "none needed on a machine without GPUs"), 0
    gpus = lines[0]["gpus"]
    finding = f"{len(gpus)} x {gpus[0].get('name', 'GPU')}, driver {lines[0].get('driver', 'unknown')}"
    return ok("NVML", finding), len(gpus)


def check_disk(folder: Path) -> Check:
    """Whether there is room for the trace of a window."""
    free_bytes = shutil.disk_usage(folder).free
    finding = f"{free_bytes / GB:,.1f} GB free in {folder}"
    if free_bytes < SMALLEST_FREE_BYTES or not os.access(folder, os.W_OK):
        problem = "too little for the trace of a window" if os.access(folder, os.W_OK) else "it cannot be written"
        return fail("Disk", f"{finding}: {problem}", "free some space, or choose another folder with -o")
    return ok("Disk", finding)


def doctor(
    context: typer.Context,
    demo: Annotated[
        bool,
        typer.Option("--demo", help="Train with a planted fault on two ranks, find it, train without it, and compare."),
    ] = False,
    ceiling: Annotated[
        bool,
        typer.Option(
            "--ceiling", help="Measure what this machine attains at best: matrix products, memory, collectives."
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="Folder of the demo's run, or file for what --ceiling measured. Otherwise a folder, whose disk is "
            "checked.",
            show_default="runs/demo, no file, .",
        ),
    ] = None,
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Check what works on this machine, and say how to fix what does not.

    Each check runs in a process of its own and leaves nothing behind. Exit status 4: a part cannot work.
    """
    if demo and ceiling:
        raise UsageError("--demo and --ceiling are two runs", hint="leave one of them out")
    if demo:
        return run_demo(output or Path("runs/demo"))
    if ceiling:
        return Outcome(measure_ceiling(output), format)
    quiet = context.find_root().params.get("quiet")
    checks = []
    for check in _run_checks(_nearest_folder(output or Path())):
        checks.append(check)
        if not quiet:  # torch alone takes seconds
            fix = f"; fix: {check.fix}" if check.fix else ""
            write_message(f"{check.verdict}: {check.part}: {check.finding}{fix}")
    failed = [check for check in checks if check.verdict is CheckVerdict.FAIL]
    code = ExitCode.DAMAGED_INPUT if failed else ExitCode.OK
    report = _report(checks)
    if format is Format.MARKDOWN and not quiet and sys.stdout.isatty() and sys.stderr.isatty():
        return Outcome(text=f"{report.sections[0].notes[0]}\n", exit_code=code)  # the rest is on the screen
    notes = tuple(f"{check.part}: {check.finding}: {check.fix}" for check in failed)
    return Outcome(report, format, notes=notes, exit_code=code)


def _run_checks(folder: Path) -> Iterator[Check]:
    """Every check as soon as it is known."""
    with ThreadPoolExecutor() as pool:  # torch is loaded in two processes, which takes seconds
        hook_checks = pool.submit(check_hook)
        yield ok("Python", f"{platform.python_version()} at {sys.executable}")
        nvml_check, gpus = check_nvml()
        yield from (nvml_check, check_launchers(), check_disk(folder))
        yield from check_torch(gpus=gpus)
        yield from hook_checks.result()


def _nearest_folder(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    absolute = folder.absolute()
    return next(candidate for candidate in (absolute, *absolute.parents) if candidate.is_dir())


def _report(checks: Sequence[Check]) -> Report:
    counts = {verdict: sum(check.verdict is verdict for check in checks) for verdict in CheckVerdict}
    note = ", ".join(f"{count} {verdict}" for verdict, count in counts.items()) + "."
    return Report(
        "Environment check",
        {
            "schema": "perfscope/doctor/1",
            **{str(verdict): count for verdict, count in counts.items()},
            "checks": [
                {"part": part, "verdict": verdict, "found": finding, "mend": fix or None}
                for part, verdict, finding, fix in checks
            ],
        },
        (Section("Checks", tuple(map(Column, ("Part", "Verdict", "Finding", "Fix"))), checks, notes=(note,)),),
    )


_DEMO_SCRIPT = Path(__file__).parents[1] / "workloads" / "demo.py"
#: The lines of the script that mending removes.
_PLANTED = "    if step % 5 == 0:\n        send_metrics()\n"
_CEILING_SCRIPT = Path(__file__).parents[1] / "workloads" / "ceiling.py"
_CEILING_S = 20
_COUNT_GPUS = "import torch; result['devices'] = torch.cuda.device_count()"


def run_demo(folder: Path) -> Outcome:
    """Train on two processor ranks with a planted fault and without it, and compare; an earlier demo is replaced."""
    script, mended = folder / "train.py", folder / "mended.py"
    if folder.exists():
        if not script.is_file() or script.read_text() != _DEMO_SCRIPT.read_text():
            raise UsageError(f"{folder} exists and is not an earlier demo", hint="choose another folder with -o")
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    shutil.copy(_DEMO_SCRIPT, script)
    mended.write_text(script.read_text().replace(_PLANTED, ""))
    sys.stderr.write(f"perfscope: {script} pauses in every fifth step; two ranks train by it\n")
    _profile_demo(script, folder / "before")
    sys.stderr.write(f"perfscope: {mended} is the same without the pause; two ranks train by it\n")
    _profile_demo(mended, folder / "after", shown=subprocess.PIPE)
    analyzed = _perfscope("analyze", folder / "before", "--only", "findings", "--format", "json")
    findings = json.loads(analyzed.stdout)["results"]["findings"]
    found = [f"{each['title']}: {each['cost']}. {each['evidence'][0]['text']}" for each in findings[:1]]
    compared = _perfscope("compare", folder / "before", folder / "after").stdout.partition("\n")[0]
    lines = (
        f"Planted: a pause of 0.2 s in every fifth step of {script}",
        f"Found:   {''.join(found) or 'nothing'}",
        f"Mended:  {compared.removeprefix('# ')}",
        f"More:    perfscope analyze {folder / 'before'}; {folder / 'before' / 'page.html'}",
    )
    return Outcome(text="\n".join(lines) + "\n")


def _profile_demo(script: Path, run_dir: Path, *, shown: int | None = None) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ended = _perfscope("profile", "-o", run_dir, "--", *torchrun, script, shown=shown)
    if ended.returncode != 0:
        sys.stderr.write(ended.stderr or "")
        raise PerfscopeError("the training failed", hint="`perfscope doctor` checks this machine")


def _perfscope(*words: str | Path, shown: int | None = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "perfscope", *words]
    return subprocess.run(command, env=environment, stdout=shown, stderr=shown, text=True, check=False)


def measure_ceiling(output: Path | None) -> Report:
    """Run the benchmark of `analyze --ceiling` on all GPUs; ``PerfscopeError`` where it failed or did not end."""
    # Asked in a process of its own: a driver's state is inherited by children.
    devices = (probe(_COUNT_GPUS).values or {"devices": 0})["devices"]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(devices)] if devices > 1 else []
    with tempfile.TemporaryDirectory(prefix="perfscope-ceiling-") as folder:
        written = Path(folder) / "ceiling.json"
        command = [sys.executable, *launcher, str(_CEILING_SCRIPT), "--write", str(written)]
        try:
            ended = subprocess.run(
                [*command, "--seconds", str(_CEILING_S)], capture_output=True, text=True, errors="replace",
                timeout=_TIMEOUT_S + 4 * _CEILING_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise PerfscopeError("the benchmark did not end", hint="CUDA_VISIBLE_DEVICES=0 measures one GPU") from None
        if ended.returncode or not written.exists():
            last = next((line for line in reversed(ended.stderr.splitlines()) if "Error" in line), "it wrote nothing")
            raise PerfscopeError(f"the benchmark failed: {last.strip()}", hint="`perfscope doctor` checks the machine")
        content = written.read_bytes()
    measured = parse_ceiling(output or Path("ceiling"), content)
    if output is not None:
        replace_file(output, content)
    title = f"What this machine attains: {measured.devices} x {measured.device}"
    title = title if measured.device else "Attained by processors"
    return Report(title, {**json.loads(content), "schema": SCHEMA}, _describe_ceiling(measured))


def _describe_ceiling(measured: Ceiling) -> tuple[Section, ...]:
    gpu = lookup_gpu(measured.device) if measured.device else None
    peaks = gpu.dense_tflops if gpu else {}
    bandwidth = (gpu.memory_tb_s if gpu else None) or 0
    sections = (
        Section(
            "Products of matrices",
            tuple(map(Column, ("Type", "Rows", "Columns", "Inner", "TFLOP/s", "Of the dense peak (%)"))),
            [(*astuple(each), percent_of(each.tflops, peaks.get(each.dtype, 0))) for each in measured.products],
            ("On random data, all devices at once; on zeros a product takes less power, and is faster.",),
        ),
        Section(
            "Memory",
            (Column("Operation"), Column("Size (MB)"), Column("TB/s", 3), Column("Of the peak (%)")),
            [(rate.operation, rate.size / MB, rate.tb_s, percent_of(rate.tb_s, bandwidth)) for rate in measured.memory],
            ("Of the bytes that are read and written.",),
        ),
        Section(
            "Collectives",
            tuple(map(Column, ("Operation", "Ranks", "Size (MB)", "busbw (GB/s)"))),
            [(rate.operation, rate.ranks, rate.size / MB, rate.busbw_gb_s) for rate in measured.collectives],
            ("busbw as nccl-tests defines it.",),
        ),
    )
    return sections if measured.collectives else sections[:-1]
