"""What a captured process is told: where to write and what to record.

It travels as ``config.json`` beside the injected ``sitecustomize.py``, and, where the file system is not shared, in the
environment variable ``PYTHON_PERFSCOPE``: DeepSpeed's launchers forward every variable whose name begins with PYTHON.
"""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, dataclass, replace

from perfscope.hooks.selection import StepWindow

ENVIRONMENT_VARIABLE = "PYTHON_PERFSCOPE"
CONFIG_FILE = "config.json"
LOCATIONS_FILE = "locations"


@dataclass(frozen=True)
class Config:
    """What to record.

    Attributes:
        run_dir: The run's folder, absolute.
        windows: The training steps to profile.
        ranks: The ranks to profile; every rank's steps are counted. None is every rank.
        shapes, stack, memory, flops: Options of torch.profiler.
        modules: Mark every forward of a module with its name.
        nvml_hz: Samples of NVML a second; 0 takes none.
        nvml_path: The folder that holds ``pynvml``; None where it is not installed.
        run_id: Tells this run from others, where its hosts share no file system.
    """

    run_dir: str
    windows: tuple[StepWindow, ...]
    ranks: frozenset[int] | None = None
    shapes: bool = False
    stack: bool = False
    memory: bool = False
    flops: bool = False
    modules: bool = False
    nvml_hz: float = 5.0
    nvml_path: str | None = None
    run_id: str | None = None

    def to_json(self) -> str:
        """Write it for another process."""
        value = asdict(self)
        value["ranks"] = None if self.ranks is None else sorted(self.ranks)
        return json.dumps(value)

    @classmethod
    def from_json(cls, text: str) -> Config:
        """Read what ``to_json`` wrote."""
        config = cls(**json.loads(text))
        return replace(
            config,
            windows=tuple(StepWindow(**window) for window in config.windows),  # type: ignore[arg-type]
            ranks=None if config.ranks is None else frozenset(config.ranks),
        )

    def to_environment(self) -> str:
        """Write it as one word without padding or quotes, which every launcher forwards unharmed."""
        return base64.urlsafe_b64encode(self.to_json().encode()).decode().rstrip("=")

    @classmethod
    def from_environment(cls, word: str) -> Config:
        """Read what ``to_environment`` wrote."""
        return cls.from_json(base64.urlsafe_b64decode(word + "=" * (-len(word) % 4)).decode())
