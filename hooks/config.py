"""The configuration of a captured process: where to write and what to record.

It travels as ``config.json`` in the folder of the injected ``sitecustomize.py``. Where the file system is not shared,
it travels in the environment variable ``PYTHON_PERFSCOPE``. DeepSpeed's launchers forward every variable whose name
begins with PYTHON.
"""

from __future__ import annotations

import base64
import json
import os
from dataclasses import asdict, dataclass

from perfscope.hooks.selection import StepWindow, WindowChoice

ENVIRONMENT_VARIABLE = "PYTHON_PERFSCOPE"
CONFIG_FILE = "config.json"
LOCATIONS_FILE = "locations"


@dataclass(frozen=True)
class Config:
    """What to record; most fields are arguments of ``perfscope.hooks.attach``.

    Attributes:
        run_dir: The run's folder, absolute.
        nvml_path: The folder that holds ``pynvml``; None where it is not installed.
        run_id: Identifies the run on hosts that share no file system.
        watchdog: Keep stacks and collectives of a training that stalls or fails.
        stall_factor: No step for so many times the median step is a stall.
        stall_s: No stall is shorter, in seconds.
    """

    run_dir: str
    windows: tuple[StepWindow, ...]
    ranks: frozenset[int] | None = None
    shapes: bool = False
    stack: bool = False
    memory: bool = False
    modules: bool = False
    nvml_hz: float = 5.0
    nvml_path: str | None = None
    run_id: str | None = None
    window: WindowChoice = WindowChoice.OPERATORS
    step_optimizer: int | str | None = None
    on_oom: bool = False
    watchdog: bool = False
    stall_factor: float = 20.0
    stall_s: float = 60.0

    @property
    def recorded(self) -> tuple[str, ...]:
        """The options of the profiler that are on, by their names."""
        return tuple(name for name in ("shapes", "stack", "memory", "modules") if getattr(self, name))

    def to_json(self) -> str:
        """Write the configuration for another process."""
        fields = asdict(self)
        fields["ranks"] = None if self.ranks is None else sorted(self.ranks)
        return json.dumps(fields)

    @classmethod
    def from_json(cls, text: str) -> Config:
        """Read what ``to_json`` wrote."""
        fields = json.loads(text)
        fields["windows"] = tuple(StepWindow(**window) for window in fields["windows"])
        fields["window"] = WindowChoice(fields["window"])
        fields["ranks"] = None if fields["ranks"] is None else frozenset(fields["ranks"])
        return cls(**fields)

    def to_environment(self) -> str:
        """Write the configuration as one word without padding or quotes, which every launcher passes on unchanged."""
        return base64.urlsafe_b64encode(self.to_json().encode()).decode().rstrip("=")

    @classmethod
    def from_environment(cls, word: str) -> Config:
        """Read what ``to_environment`` wrote."""
        return cls.from_json(base64.urlsafe_b64decode(word + "=" * (-len(word) % 4)).decode())


def read_config(boot_dir: str) -> Config:
    """Read what ``perfscope profile`` wrote: from its boot folder, or from the environment on another host.

    Raises:
        KeyError: Neither is there.
        OSError: The file cannot be read.
    """
    path = os.path.join(boot_dir, CONFIG_FILE)
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            return Config.from_json(file.read())
    return Config.from_environment(os.environ[ENVIRONMENT_VARIABLE])
