"""Lines as the frameworks print them, with numbers that a reader can check by hand."""

from __future__ import annotations

from pathlib import Path

from perfscope.sources.joblog import read_log
from perfscope.tables.joblog import JobLog


def megatron(
    iteration: int,
    ms: float | str,
    total: int = 1000,
    batch: int = 1024,
    cells: str = "",
    skipped: int = 0,
    prefix: str = "",
) -> str:
    """Megatron-LM's line of 2021."""
    loss = " lm loss: 7.100000E+00 |" if not skipped else ""
    return (
        f"{prefix} iteration {iteration:8d}/{total:8d} | consumed samples: {iteration * batch:12d} | "
        f"elapsed time per iteration (ms): {ms} | learning rate: 1.500E-04 | global batch size: {batch:5d} |{loss} "
        f"loss scale: 4096.0 | grad norm: 1.000 |{cells} number of skipped iterations: {skipped:3d} | "
        "number of nan iterations:   0 |\n"
    )


def neox(iteration: int, ms: float, samples_per_s: float) -> str:
    """GPT-NeoX's line: the anchor is not at its beginning."""
    return (
        f" samples/sec: {samples_per_s:.3f} | iteration {iteration:8d}/   10000 | elapsed time per iteration (ms): {ms:.1f}"
        " | learning rate: 9.700E-06 | approx flops per GPU: 109.3TFLOPS | lm_loss: 2.104523E+00 | loss scale: 16384.0 |"
        " number of skipped iterations:   0 | number of nan iterations:   0 |\n"
    )


def titan(step: int, stamp: str, tps: str = "5,801", label: str = "[rank0]:") -> str:
    """torchtitan's line, coloured as its terminal output is."""
    return (
        f"{label}[titan] 2025-06-16 {stamp} - root - INFO - \x1b[31mstep: {step:2d}  \x1b[32mloss:  8.1234  "
        f"\x1b[38;2;180;60;0mgrad_norm:  1.5000  \x1b[36mmemory: 37.12GiB(46.40%)  \x1b[34mtps: {tps}  "
        "\x1b[35mtflops: 336.63  \x1b[33mmfu: 34.04%\x1b[39m\n"
    )


def read(folder: Path, *lines: str, name: str = "run.log") -> JobLog:
    """Write lines to a log and read it."""
    path = folder / name
    path.write_bytes("".join(lines).encode())
    return read_log(path)


def seconds(log: JobLog) -> list[float | None]:
    """Every record's time."""
    return [None if value is None else value / 1e9 for value in log.iterations.wall_ns.tolist()]
