"""MFU of a running job: measured once on its first steps, and carried on by the tokens that it processes."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from perfscope import wire
from perfscope.analyzers.mfu import analyze
from perfscope.errors import PerfscopeError
from perfscope.sources.runs.run import read_run

_COPIED = (wire.RANK_FILE, wire.MODEL_FILE, wire.SETUP_FILE, wire.PARALLEL_FILE)
_BYTES = 65536


def mfu_per_token_rate(run: Path) -> tuple[float | None, str]:
    """MFU for each token per second, by the headline convention; None with the reason in words.

    The analyzer of finished runs reads a copy of the run with the last steps alone.
    """
    with tempfile.TemporaryDirectory(prefix="perfscope-watch-") as folder:
        copy = Path(folder)
        shutil.copyfile(run / wire.RUN_FILE, copy / wire.RUN_FILE)
        for rank in (run / wire.RANKS_FOLDER).glob("*"):
            target = copy / wire.RANKS_FOLDER / rank.name
            target.mkdir(parents=True)
            for name in _COPIED:
                if (rank / name).is_file():
                    shutil.copyfile(rank / name, target / name)
            if (rank / wire.STEPS_FILE).is_file():
                _copy_tail(rank / wire.STEPS_FILE, target / wire.STEPS_FILE)
        try:
            utilisation = analyze(read_run(copy))
        except PerfscopeError as error:
            return None, error.problem
    step = utilisation.headline
    if step.mfu is None or not step.flops_per_token or not step.tflops_per_gpu:
        return None, step.reason or "the run had no GPU whose peak is known"
    gpus = max(1, len(list((run / wire.RANKS_FOLDER).glob("*[0-9]"))))
    tokens_per_s = step.tflops_per_gpu * 1e12 * gpus / float(step.flops_per_token)
    return step.mfu / tokens_per_s, ""


def _copy_tail(source: Path, target: Path) -> None:
    with source.open("rb") as file:
        size = source.stat().st_size
        file.seek(max(0, size - _BYTES))
        content = file.read()
    target.write_bytes(content if size <= _BYTES else content.partition(b"\n")[2])
