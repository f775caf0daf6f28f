"""Whatever a shell, a batch system or a user puts around a command, it ends with perfscope as without."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.hooks.harm.shell import STEPS, run_alone, run_captured

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Case:
    """A line of a shell.

    Attributes:
        line: The line; ``$P`` stands for perfscope.
        steps: How many steps perfscope records.
        says: What a line of perfscope says; empty where nothing is expected.
        options: Options of perfscope.
    """

    line: str
    steps: int = STEPS
    says: str = ""
    options: str = ""


def fill(size: int | str) -> str:
    """A word of so many letters, for a shell."""
    return f"$(head -c {size} /dev/zero | tr '\\0' a)"


GREEDY = r"mkdir bin; printf '#!/bin/sh\ncat >/dev/null\n' > bin/git; chmod +x bin/git; cp bin/git bin/nvidia-smi; "
CALL = "import os, signal, train; train.train(); "

STREAMS = {
    "input from a file": Case("$P python - < train.py"),
    "input from a pipe": Case("cat train.py | $P python -"),
    "input from a here-document": Case('$P python - <<EOF\n$(cat train.py)\nprint("end")\nEOF'),
    "input that our helpers would read": Case(f"{GREEDY}PATH=$PWD/bin:$PATH; $P python - < train.py"),
    "input for the script": Case(f"seq 30000 | $P python -c '{CALL}print(len(open(0).read()))'"),
    "input closed": Case("$P python train.py <&-"),
    "output closed": Case("$P python train.py >&-"),
    "error closed": Case("$P python train.py 2>&-"),
    "all closed": Case("$P python train.py <&- >&- 2>&-"),
    "output full": Case("$P python train.py >/dev/full", steps=1),
    "error full": Case("$P python train.py 2>/dev/full"),
    "nobody reads the output": Case("$P python train.py | true; echo ${PIPESTATUS[0]}", steps=1),
    "nobody reads the errors": Case("{ $P python train.py 2>&1 1>&3 | true; echo ${PIPESTATUS[0]}; } 3>&1"),
    "a broken pipe kills": Case(f"$P python -c 'import signal; signal.signal(13, signal.SIG_DFL); {CALL}'"),
    "other descriptors": Case("$P python /dev/fd/4 4<train.py"),
    "process substitution": Case("$P python <(cat train.py)"),
}
LIMITS = {
    "a variable of 120 kB": Case(f"export BIG={fill(120_000)}; $P python train.py"),
    "a recorded variable of 120 kB": Case(f"export NCCL_BIG={fill(120_000)}; $P python train.py"),
    "an argument of 120 kB": Case(f"$P python train.py {fill(120_000)}"),
    "a path of almost 128 kB": Case(
        f"export PYTHONPATH=$PYTHONPATH:/{fill('$((131040 - ${#PYTHONPATH}))')}; $P python train.py",
        0,
        "runs without perfscope: Argument list too long",
    ),
    "no file may grow": Case("ulimit -f 0; $P python train.py", 0, "its folder cannot be written: File too large"),
    "files of 1 kB": Case("ulimit -f 1; $P python train.py", 0, "runs without perfscope"),
    "files of 8 kB": Case("ulimit -f 8; $P python train.py"),
    "six open files": Case("ulimit -n 6; $P python train.py"),
    "little memory": Case("ulimit -v 100000; $P python train.py"),
    "no home": Case("unset HOME; $P python train.py"),
    "a home that is not there": Case("HOME=/nonexistent $P python train.py"),
    "no folder for temporary files": Case("TMPDIR=/nonexistent $P python train.py"),
    "a working folder that was deleted": Case("mkdir x; cd x; rmdir ../x; $P python $OLDPWD/train.py"),
    "interactive afterwards": Case("PYTHONINSPECT=1 $P python train.py; echo $?"),
}
SIGNALS = {
    "a real-time signal": Case(f"$P python -c '{CALL}os.kill(os.getpid(), 40)'; echo $?"),
    "the last signal": Case(f"$P python -c '{CALL}os.kill(os.getpid(), 64)'"),
}
CASES = {**STREAMS, **LIMITS, **SIGNALS}


@pytest.mark.parametrize("name", CASES)
def test_it_ends_as_without_perfscope(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    alone = run_alone(case.line, tmp_path / "alone")
    seen, captured = run_captured(case.line, tmp_path / "captured", case.options)
    assert seen == alone
    assert captured.steps == case.steps
    assert not case.says or any(case.says in line for line in captured.lines)
