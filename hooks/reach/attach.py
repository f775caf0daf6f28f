"""Capture from inside a script: patches what is imported already, and watches for what is imported later."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from perfscope import wire
from perfscope.frameworks import WATCHED
from perfscope.hooks import start
from perfscope.hooks.config import Config
from perfscope.hooks.facts.describe import describe_run
from perfscope.hooks.reach.imports import PostImportFinder
from perfscope.hooks.selection import (
    DEFAULT_WINDOWS,
    StepWindow,
    WindowChoice,
    parse_ranks,
    parse_step_optimizer,
    parse_windows,
)
from perfscope.wire.records import to_file


def attach_process(
    run_dir: str, steps: str | None, ranks: str | None, window: str, step_optimizer: int | str | None, **options: Any
) -> None:
    """Capture this process, unless it is captured already; see ``perfscope.hooks.attach``.

    Raises ValueError: an option cannot be read. OSError: the folder cannot be created.
    """
    windows = parse_windows(steps or DEFAULT_WINDOWS)
    profiled_ranks = None if ranks is None else parse_ranks(ranks)
    choice = WindowChoice(window)
    boundary = None if step_optimizer is None else parse_step_optimizer(str(step_optimizer))
    if start.PROCESS.capture is not None or "_perfscope_imports" in sys.modules:
        return
    recorded = tuple(name for name, is_on in options.items() if is_on and name != "nvml_hz")
    start_capture(
        Config(
            run_dir=make_run_dir(run_dir, windows, recorded),
            windows=windows,
            ranks=profiled_ranks,
            window=choice,
            nvml_path=find_pynvml(),
            step_optimizer=boundary,
            watchdog=True,
            **options,
        )
    )


def start_capture(config: Config) -> None:
    """Create the capture and patch every watched module, now or when it is imported."""
    capture = start.PROCESS.begin(config)

    def patch(name: str, module: ModuleType) -> None:
        start.patch_module(WATCHED[name], name, module, capture)

    for name in sorted(WATCHED):
        if name in sys.modules:
            patch(name, sys.modules[name])
    sys.meta_path.insert(0, PostImportFinder(WATCHED, patch))
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        capture.on_process_group()


def make_run_dir(run_dir: str, windows: Sequence[StepWindow], recorded: Sequence[str] = ()) -> str:
    """Create the run's folder and describe the run, unless another rank has done so. Raises OSError."""
    path = os.path.abspath(run_dir)
    for folder in (wire.RANKS_FOLDER, wire.TRACES_FOLDER):
        os.makedirs(os.path.join(path, folder), exist_ok=True)
    description = to_file(describe_run([sys.executable, *sys.argv], os.environ, windows, recorded))
    with contextlib.suppress(FileExistsError), open(os.path.join(path, wire.RUN_FILE), "xb") as file:
        file.write(description)
    return path


def find_pynvml() -> str | None:
    """Find the folder that holds ``pynvml``; None where it is not installed."""
    spec = find_spec("pynvml")
    return os.path.dirname(os.path.abspath(spec.origin)) if spec is not None and spec.origin else None
