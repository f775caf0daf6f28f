"""Builds the library that stands for libnvidia-ml, and runs the sampler with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pynvml
import pytest

from tests.conftest import ROOT

HERE = Path(__file__).resolve().parent
SAMPLER = ROOT / "hooks" / "nvml" / "sampler.py"

#: Sample so many rounds with the library built and behaving as told; the lines it wrote.
Sampled: TypeAlias = Callable[..., list[dict[str, Any]]]


def build(folder: Path, flags: Sequence[str] = ()) -> Path:
    """Compile the library; what is given back is for LD_LIBRARY_PATH."""
    source, library = HERE / "fake_nvml.c", folder / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-O1", "-Wall", "-shared", "-fPIC", *flags, source, "-o", library, "-lm"], check=True)
    return folder


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def old_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("old_nvml"), ["-DWITHOUT_EVENT_REASONS"])


@pytest.fixture(scope="session")
def sampled() -> Sampled:
    return sample


def sample(
    library: Path, behaviour: str, rounds: int, hz: float = 20.0, extra: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """The lines of a sampler that ended by itself, or was stopped after so many rounds."""
    lines: list[dict[str, Any]] = []
    with subprocess.Popen(
        [sys.executable, "-I", "-S", SAMPLER, Path(pynvml.__file__).parent, str(hz), str(os.getpid()), *extra],
        stdout=subprocess.PIPE,
        env={**os.environ, "LD_LIBRARY_PATH": str(library), "FAKE_NVML": behaviour},
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(json.loads(line))
            if sum("gpus" in one for one in lines) > rounds:
                process.terminate()
                break
        process.communicate(timeout=60)
    return lines
