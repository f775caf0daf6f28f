"""The options of ``perfscope bench``, and the matrix that they and a matrix file make."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from perfscope.bench.matrix_file import OPTION_SETS, expand_rows, read_matrix
from perfscope.bench.settings import Settings, Variant
from perfscope.commands.options import require_positive
from perfscope.errors import UsageError

_ROWS, _TRAINING, _RUNNING = "Rows", "Training", "Running"
_DEFAULTS: dict[str, object] = {
    "model": "gpt2-small",
    "warmup": 3,
    "steps": 10,
    "micro-batches": 4,
    "split-size": 8,
    "repetitions": 1,
    "weak": False,
    "saves": True,
}
_BATCH = {"cuda": 64, "cpu": 16}
_IMAGE_SIZE = {"cuda": 28, "cpu": 16}
_NPROCS = ["1", "2"]
_PRECISION = {"cuda": "bf16", "cpu": "fp32"}


class Devices(StrEnum):
    """What trains."""

    CPU = "cpu"
    CUDA = "cuda"


@dataclass(frozen=True, slots=True)
class MatrixOptions:
    """Which rows there are."""

    strategies: Annotated[
        str | None,
        typer.Option(help="Strategies, such as single,ddp,fsdp2, or all.", show_default="all", rich_help_panel=_ROWS),
    ] = None
    nproc: Annotated[
        str | None,
        typer.Option(
            help="Numbers of devices, such as 1,2,4: GPUs, or processes on CPUs.",
            show_default="1,2",
            rich_help_panel=_ROWS,
        ),
    ] = None
    precision: Annotated[
        str | None,
        typer.Option(help="Precisions: fp32,bf16.", show_default="bf16 on GPUs, fp32 on CPUs", rich_help_panel=_ROWS),
    ] = None
    options: Annotated[
        str | None,
        typer.Option(
            help=f"Variants of each strategy: {','.join(OPTION_SETS)}; recompute is activation checkpointing.",
            show_default="plain",
            rich_help_panel=_ROWS,
        ),
    ] = None
    matrix: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml",
            help="Take rows and settings from this file; a typed option wins.",
            rich_help_panel=_ROWS,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class SettingOptions:
    """What all rows train."""

    model: Annotated[
        str | None,
        typer.Option(
            help="What is trained: resnet50, gpt2-small, gpt:LAYERSxHIDDENxSEQUENCE, or a function FILE.py:NAME.",
            show_default="gpt2-small",
            rich_help_panel=_TRAINING,
        ),
    ] = None
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="Samples of a step, over all devices.",
            show_default="64 on GPUs, 16 on CPUs",
            rich_help_panel=_TRAINING,
        ),
    ] = None
    weak: Annotated[
        bool | None,
        typer.Option(
            "--weak",
            help="The batch size is that of each device, and grows with their number.",
            show_default="no",
            rich_help_panel=_TRAINING,
        ),
    ] = None
    devices: Annotated[
        Devices | None,
        typer.Option(help="What trains.", show_default="cuda where there is a GPU", rich_help_panel=_TRAINING),
    ] = None
    data: Annotated[
        str | None,
        typer.Option(
            help="Real data: a folder of MNIST's files or an .npz for images; .bin, .npy or text for tokens.",
            show_default="synthetic",
            rich_help_panel=_TRAINING,
        ),
    ] = None
    image_size: Annotated[
        int | None,
        typer.Option(
            help="Size of a side of a synthetic image, in pixels.",
            show_default="28, on CPUs 16",
            rich_help_panel=_TRAINING,
        ),
    ] = None
    micro_batches: Annotated[
        int | None,
        typer.Option(help="Micro-batches of a pipeline.", show_default="4", rich_help_panel=_TRAINING),
    ] = None
    split_size: Annotated[
        int | None,
        typer.Option(
            help="Size of a split of the pipelined and the RPC strategy, in samples.",
            show_default="8",
            rich_help_panel=_TRAINING,
        ),
    ] = None
    saves: Annotated[
        bool | None,
        typer.Option(
            "--saves/--no-saves",
            help="Save a checkpoint at the end of each training.",
            show_default="yes",
            rich_help_panel=_TRAINING,
        ),
    ] = None
    warmup: Annotated[
        int | None,
        typer.Option(help="Steps that are dropped at the start.", show_default="3", rich_help_panel=_TRAINING),
    ] = None
    steps: Annotated[
        int | None,
        typer.Option(help="Steps that are measured.", show_default="10", rich_help_panel=_TRAINING),
    ] = None


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How the rows are run."""

    output: Annotated[
        Path,
        typer.Option("-o", "--output", help="Folder of the benchmark; one that was interrupted there goes on.",
                     rich_help_panel=_RUNNING),
    ] = Path("bench")  # fmt: skip
    repetitions: Annotated[
        int | None,
        typer.Option(
            help="Trainings of each row, in turn; whether rows truly differ needs two, better three or more.",
            show_default="1",
            rich_help_panel=_RUNNING,
        ),
    ] = None
    timeout: Annotated[
        float,
        typer.Option(
            min=1, help="Time limit of one training: the second at which it is ended.", rich_help_panel=_RUNNING
        ),
    ] = 600
    retry: Annotated[
        bool,
        typer.Option("--retry", help="Train again what failed in an earlier call.", rich_help_panel=_RUNNING),
    ] = False
    keep_runs: Annotated[
        bool,
        typer.Option(
            "--keep-runs", help="Keep the run of each training for perfscope analyze.", rich_help_panel=_RUNNING
        ),
    ] = False
    launcher: Annotated[
        str | None,
        typer.Option(
            help="What starts the processes on several hosts, such as 'srun -N 2 -n {nproc}'; {nproc} and {port} are "
            "filled in.",
            show_default="torchrun on this host",
            rich_help_panel=_RUNNING,
        ),
    ] = None


class Choice(NamedTuple):
    """What was chosen.

    Attributes:
        settings: What all rows have in common.
        variants: The rows.
        repetitions: Trainings of each row.
    """

    settings: Settings
    variants: tuple[Variant, ...]
    repetitions: int


def choose_matrix(matrix: MatrixOptions, typed: SettingOptions, running: RunOptions) -> Choice:
    """Join what was typed with the matrix file and the defaults.

    Raises:
        UsageError: A value means nothing.
        SourceError: The matrix file cannot be used.
    """
    document = read_matrix(matrix.matrix) if matrix.matrix is not None else {}
    values = _DEFAULTS | {key: value for key, value in document.items() if key != "rows"} | _list_typed(typed, running)
    device = str(values.get("devices") or _find_device())
    if device not in set(Devices):
        raise UsageError(f"there is no device {device!r}", hint="cpu or cuda")
    values.setdefault("image-size", _IMAGE_SIZE[device])
    for name in ("image-size", "steps", "micro-batches", "split-size", "repetitions"):
        require_positive(f"--{name}", _whole(values[name]))
    if _whole(values["warmup"]) < 1:
        raise UsageError("--warmup must be at least 1: the first step of a training is not like the others")
    variants = _list_rows(matrix, document, _PRECISION[device])
    settings = Settings(
        model=_resolve_model(str(values["model"])),
        data=None if values.get("data") is None else str(_require_file(Path(str(values["data"])))),
        device=device,
        batch=require_positive("--batch-size", _whole(values.get("batch-size", _BATCH[device]))),
        is_weak=bool(values["weak"]),
        image_size=_whole(values["image-size"]),
        warmup=_whole(values["warmup"]),
        steps=_whole(values["steps"]),
        micro_batches=_whole(values["micro-batches"]),
        split_size=_whole(values["split-size"]),
        saves=bool(values["saves"]),
        threads=max(1, (os.cpu_count() or 1) // max(variant.nproc for variant in variants)),
        launcher=None if values.get("launcher") is None else _check_launcher(str(values["launcher"])),
        model_sha256=_hash_file(_resolve_model(str(values["model"]))),
    )
    return Choice(settings, variants, _whole(values["repetitions"]))


def _list_rows(matrix: MatrixOptions, document: dict[str, object], precision: str) -> tuple[Variant, ...]:
    """The rows of the matrix file, whose tables lack what was typed or have it replaced; else of what was typed."""
    words = {name: getattr(matrix, name) for name in ("strategies", "nproc", "precision", "options")}
    typed = {name: value.split(",") for name, value in words.items() if value is not None}
    tables = document.get("rows", [{"nproc": _NPROCS}])
    return expand_rows(tables, typed, precision)


def _list_typed(typed: SettingOptions, running: RunOptions) -> dict[str, object]:
    values = {
        "model": typed.model,
        "batch-size": typed.batch_size,
        "weak": typed.weak,
        "devices": typed.devices,
        "data": typed.data,
        "image-size": typed.image_size,
        "micro-batches": typed.micro_batches,
        "split-size": typed.split_size,
        "warmup": typed.warmup,
        "steps": typed.steps,
        "saves": typed.saves,
        "launcher": running.launcher,
        "repetitions": running.repetitions,
    }
    return {name: value for name, value in values.items() if value is not None}


def _whole(value: object) -> int:
    assert isinstance(value, int)
    return value


def _find_device() -> str:
    return "cuda" if Path("/dev/nvidiactl").exists() else "cpu"


def _resolve_model(model: str) -> str:
    """The model, with the whole path of a user's file."""
    file, separator, function = model.rpartition(":")
    if not separator or not file.endswith(".py"):
        return model
    return f"{_require_file(Path(file))}:{function}"


def _hash_file(model: str) -> str | None:
    """The hash of a user's file of a model."""
    file = model.rpartition(":")[0]
    return sha256(Path(file).read_bytes()).hexdigest() if file.endswith(".py") else None


def _require_file(path: Path) -> Path:
    if not path.exists():
        raise UsageError(f"{path} does not exist")
    return path.absolute()


def _check_launcher(launcher: str) -> str:
    try:
        launcher.format(nproc=1, port=1)
    except (KeyError, IndexError, ValueError):
        raise UsageError(f"--launcher {launcher!r} has other fields than {{nproc}} and {{port}}") from None
    return launcher
