"""One training of one row: what was measured, or why nothing was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from perfscope.bench.settings import Variant, read_variant
from perfscope.errors import SourceError
from perfscope.files import replace_file
from perfscope.report import Json

SCHEMA = "perfscope/bench-measurement/1"


@dataclass(frozen=True, slots=True)
class Measurement:
    """A training that ended, without warm-up, the profiled step and its neighbours; what was not measured is None.

    ``memory_bytes`` is the peak of tensors on each device, or of each process on CPUs. ``last_loss`` and ``accuracy``
    are of the last quarter of the steps. ``step_j`` is of all GPUs, ``shares`` of the profiled step. ``tflops`` is per
    GPU, by convention; ``products`` counts the model's own matrix products and convolutions.
    """

    variant: Variant
    repetition: int
    reason: str | None = None
    step_ns: tuple[int, ...] = ()
    samples: int | None = None
    tokens: int | None = None
    first_loss: float | None = None
    last_loss: float | None = None
    losses: tuple[float, ...] = ()
    accuracy: float | None = None
    memory_bytes: tuple[int, ...] = ()
    util_percent: float | None = None
    step_j: float | None = None
    overlap: float | None = None
    shares: Mapping[str, float] = field(default_factory=dict)
    bubble: float | None = None
    tflops: Mapping[str, float] = field(default_factory=dict)
    mfu: float | None = None
    save_ns: int | None = None
    save_bytes: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of its files and of its run."""
        return f"{self.variant.key}.{self.repetition}"

    def data(self) -> dict[str, Json]:
        """The measurement for JSON."""
        return {"schema": SCHEMA, **asdict(self)}

    def write(self, folder: Path) -> None:
        """Write it into a folder, whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / f"{self.name}.json", json.dumps(self.data(), indent=1).encode())


def read_measurements(folder: Path) -> list[Measurement]:
    """The measurements of a folder; SourceError where a file is none."""
    return [read_measurement(path) for path in sorted(folder.glob("*.json"))]


def read_measurement(path: Path) -> Measurement:
    """Read one measurement; SourceError where the file is none."""
    try:
        values = json.loads(path.read_bytes())
        is_ours = isinstance(values, dict) and values.get("schema") == SCHEMA
    except ValueError:
        is_ours = False
    if not is_ours:
        raise SourceError(path, "is not a measurement of `perfscope bench`")
    names = {column.name for column in fields(Measurement)}
    chosen: dict[str, Any] = {name: value for name, value in values.items() if name in names}
    chosen |= {name: tuple(value) for name, value in chosen.items() if isinstance(value, list)}
    chosen["variant"] = read_variant(values["variant"])
    return Measurement(**chosen)
