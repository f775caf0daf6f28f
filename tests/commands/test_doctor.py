"""`perfscope doctor` tries every part for real, names what does not work and how to fix it, and harms nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from perfscope.commands import doctor
from perfscope.commands.doctor import CheckVerdict
from perfscope.errors import ExitCode
from tests.conftest import ROOT, perfscope
from tests.hooks.nvml.conftest import build

pytestmark = pytest.mark.slow


def with_module(folder: Path, name: str, text: str) -> dict[str, str]:
    """An environment in which a module of this text hides the real one."""
    path = folder / "modules" / f"{name}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return {**os.environ, "PYTHONPATH": str(path.parent)}


def test_every_part_is_checked_and_nothing_is_left_behind(tmp_path: Path) -> None:
    """The guide's example: its lines are there, and so is a row for each part."""
    (example,) = re.findall(
        r"```console\n\$ perfscope doctor\n(.*?)```", (ROOT / "docs" / "doctor.md").read_text(), re.S
    )
    ended = perfscope("doctor", cwd=tmp_path)
    assert ended.code == 0, ended.stderr
    assert list(tmp_path.iterdir()) == []
    for line in example.splitlines():
        assert line == "..." or re.search(f"^{re.escape(line.removesuffix('...'))}", ended.stdout, re.M), line
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in ended.stdout.splitlines() if line[:1] == "|"]
    verdicts = {part: verdict for part, verdict, *_ in rows[2:]}
    assert "fail" not in verdicts.values()
    for part in ("Python", "torch", "torch.profiler", "Hook", "Hooks of torch", "Hooks of deepspeed", "Disk"):
        assert verdicts[part] == "ok", part
    assert verdicts["NVML"] in ("ok", "warn")
    assert ended.stderr.startswith("perfscope: ok: Python: ")  # before torch is loaded


FAKE_TORCH = """
import json
__version__ = "{version}"
class version: cuda, hip = "13.0", None
class cuda:
    is_available = staticmethod(lambda: {devices} > 0)
    device_count = staticmethod(lambda: {devices})
    get_device_name = staticmethod(lambda index: "Imagined GPU")
    synchronize = staticmethod(lambda: None)
class Tensor:
    def sum(self): return self
    def item(self): return 1
    def __matmul__(self, other): return self
ones = lambda *shape, device=None: Tensor()
class profiler:
    class ProfilerActivity: CPU, CUDA = 0, 1
    class profile:
        def __init__(self, activities): pass
        def __enter__(self): return self
        def __exit__(self, *error): pass
        def export_chrome_trace(self, path):
            events = [{{"cat": "cpu_op"}}] + [{{"cat": "kernel"}}] * {kernels}
            json.dump({{"traceEvents": events}}, open(path, "w"))
            import sys; sys.stderr.write("CUPTI initialization failed: insufficient privileges\\n")
"""


@pytest.mark.parametrize(
    ("facts", "gpus", "expected", "says"),
    [
        ({"devices": 1, "kernels": 3}, 1, ("CUPTI", "ok"), "contains 3 kernels"),
        ({"devices": 1, "kernels": 0}, 1, ("CUPTI", "fail"), "no kernel: CUPTI initialization failed: insuff"),
        ({"devices": 0, "kernels": 0}, 4, ("CUDA", "fail"), "torch sees none of 4 GPUs"),
        ({"devices": 0, "kernels": 0, "version": "2.1.0"}, 0, ("torch", "warn"), "2.1.0; the hooks are tested from"),
    ],
)
def test_what_a_tiny_profile_shows(
    facts: Mapping[str, object], gpus: int, expected: tuple[str, str], says: str, tmp_path: Path
) -> None:
    environment = with_module(tmp_path, "torch", FAKE_TORCH.format(**{"version": "2.11.0+cu130", **facts}))
    (check,) = [check for check in doctor.check_torch(environment, gpus=gpus) if check.part == expected[0]]
    assert (check.verdict, says in check.finding) == (expected[1], True), check
    assert bool(check.fix) == (expected[1] != "ok")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("raise OSError('libtorch_cuda.so: cannot open shared object file')", "libtorch_cuda.so: cannot open"),
        ("import os; os.kill(os.getpid(), 11)", "it was killed by SIGSEGV"),
        ("import os; os._exit(3)", "it exited with status 3"),
    ],
)
def test_a_torch_that_crashes_is_a_failure_with_its_cause(text: str, says: str, tmp_path: Path) -> None:
    (check,) = doctor.check_torch(with_module(tmp_path, "torch", text))
    assert check.verdict is CheckVerdict.FAIL
    assert says in check.finding


def test_a_version_that_moved_a_function_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "modules" / "deepspeed" / "runtime" / "pipe"
    package.mkdir(parents=True)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").touch()
    (package.parent / "engine.py").write_text("class DeepSpeedEngine:\n    pass\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))
    monkeypatch.setattr(doctor, "_find_packages", lambda: ["deepspeed"])
    (_, check, *_) = doctor.check_hook()
    assert check.verdict is CheckVerdict.WARN
    assert "is off in deepspeed.runtime.engine" in check.finding


def test_a_launcher_of_another_environment_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "torchrun"
    program.write_text("#!/opt/other/bin/python3\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    check = doctor.check_launchers()
    assert check.verdict is CheckVerdict.WARN
    assert f"torchrun at {program}" in check.finding


def test_nvml_is_checked_with_the_sampler_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(build(tmp_path)))
    monkeypatch.setenv("FAKE_NVML", "gpus=2")
    check, gpus = doctor.check_nvml()
    assert (check.verdict, check.finding, gpus) == (CheckVerdict.OK, "2 x Imagined GPU, driver 999.1", 2)
    monkeypatch.setenv("FAKE_NVML", "no_init")
    check, gpus = doctor.check_nvml()
    assert (check.verdict, gpus, "Driver Not Loaded" in check.finding) == (CheckVerdict.WARN, 0, True)


def test_a_part_that_cannot_work_ends_with_status_4_and_its_cause(tmp_path: Path) -> None:
    environment = with_module(tmp_path, "torch", "raise ImportError('broken')")
    ended = perfscope("doctor", cwd=tmp_path, PYTHONPATH=f"{environment['PYTHONPATH']}:{ROOT}")
    assert ended.code == 4
    assert "perfscope: torch: a tiny profile failed: ImportError: broken: try: python" in ended.stderr
    assert "| torch " in ended.stdout


def test_the_demo_finds_its_fault_and_mends_it(tmp_path: Path) -> None:
    ended = perfscope("doctor", "--demo", "-o", "demo", cwd=tmp_path)
    assert ended.code == 0, ended.stderr
    script = (tmp_path / "demo" / "train.py").read_text().splitlines()
    line = next(number for number, text in enumerate(script, 1) if "time.sleep" in text)
    planted, found, mended, _ = ended.stdout.splitlines()[-4:]
    assert planted.endswith("demo/train.py")
    assert "s of " in found
    assert f"send_metrics (demo/train.py:{line})" in found
    assert mended.startswith("Mended:  ")
    assert "send_metrics(" not in (tmp_path / "demo" / "mended.py").read_text().partition("for step")[2]


def test_the_demo_replaces_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    ended = perfscope("doctor", "--demo", "-o", ".", cwd=tmp_path)
    assert ended.code == ExitCode.USAGE
    assert (tmp_path / "train.py").exists()
