"""Whatever a shell, a batch system or a user puts around a command, it ends with perfscope as without."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.hooks.harm.shell import STEPS, run_alone, run_captured

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Case:
    """A line of a shell, in which ``$P`` stands for perfscope, and what a line of perfscope's says.

    ``steps`` are those that it records; None where it is killed before it writes the last of them.
    """

    line: str
    steps: int | None = STEPS
    says: str = ""


def fill(size: int | str) -> str:
    """A word of so many letters, for a shell."""
    return f"$(head -c {size} /dev/zero | tr '\\0' a)"


GREEDY = r"mkdir bin; printf '#!/bin/sh\ncat >/dev/null\n' > bin/git; chmod +x bin/git; cp bin/git bin/nvidia-smi; "
CALL = "import os, signal, train; train.train(); "

STREAMS = {
    "input from a file": Case("$P python - < train.py"),
    "input from a pipe": Case("cat train.py | $P python -"),
    "input that our helpers would read": Case(f"{GREEDY}PATH=$PWD/bin:$PATH; $P python - < train.py"),
    "input for the script": Case(f"seq 30000 | $P python -c '{CALL}print(len(open(0).read()))'"),
    "all closed": Case("$P python train.py <&- >&- 2>&-"),
    "output full": Case("$P python train.py >/dev/full", steps=1),
    "error full": Case("$P python train.py 2>/dev/full"),
    "nobody reads the output": Case("$P python train.py | true; echo ${PIPESTATUS[0]}", steps=1),
    "nobody reads the errors": Case("{ $P python train.py 2>&1 1>&3 | true; echo ${PIPESTATUS[0]}; } 3>&1"),
    "a broken pipe kills": Case(f"$P python -c 'import signal; signal.signal(13, signal.SIG_DFL); {CALL}'"),
    "process substitution": Case("$P python <(cat train.py)"),
}
LIMITS = {
    "a variable of 120 kB": Case(f"export BIG={fill(120_000)}; $P python train.py"),
    "an argument of 120 kB": Case(f"$P python train.py {fill(120_000)}"),
    "a path of almost 128 kB": Case(
        f"export PYTHONPATH=$PYTHONPATH:/{fill('$((131040 - ${#PYTHONPATH}))')}; $P python train.py",
        0,
        "runs without perfscope: Argument list too long",
    ),
    "no file may grow": Case("ulimit -f 0; $P python train.py", 0, "its folder cannot be written: File too large"),
    "files of 1 kB": Case("ulimit -f 1; $P python train.py", None),
    "files of 8 kB": Case("ulimit -f 8; $P python train.py"),
    "six open files": Case("ulimit -n 6; $P python train.py"),
    "little memory": Case("ulimit -v 100000; $P python train.py"),
    "no folder for temporary files": Case("TMPDIR=/nonexistent $P python train.py"),
    "a working folder that was deleted": Case("mkdir x; cd x; rmdir ../x; $P python $OLDPWD/train.py"),
    "interactive afterwards": Case("PYTHONINSPECT=1 $P python train.py; echo $?"),
}
SIGNALS = {
    "a real-time signal": Case(f"$P python -c '{CALL}os.kill(os.getpid(), 40)'; echo $?", None),
}
OWN_SITE = 'mkdir s; echo \'import sys; "perfscope" in sys.orig_argv or print("mine", __file__)\' > s/{}.py; '
SHOW = "; ".join(
    [
        "import os, signal, sys",
        "print(sys.path, [f for f in sys.meta_path if type(f).__name__ != 'PostImportFinder'])",
        "print(sorted(sys.path_importer_cache.items(), key=str), sorted(n for n in sys.modules if n not in OURS))",
        "print(sys.argv, sys.orig_argv, sys.flags, sys.warnoptions, sys.path_hooks, sys.dont_write_bytecode)",
        "print({n: v for n, v in os.environ.items() if n not in OURS})",
        "print(os.environ['PYTHONPATH'].endswith(os.environ['A']))",
        "print(os.listdir('/proc/self/fd'), os.getcwd(), os.umask(18))",
        "print([signal.getsignal(n) for n in range(1, 32)], signal.pthread_sigmask(0, []), os.nice(0))",
        "print(sys.excepthook, sys.displayhook, sys.gettrace(), sys.getprofile(), sys.getrecursionlimit())",
    ]
)
OURS = "OURS = 'P _ PYTHONPATH PYTHON_PERFSCOPE TEARDOWN_CUPTI sitecustomize '\n"
OURS += "OURS += '_perfscope_imports _perfscope_frameworks'\n"
WRITE_SHOW = f'cat > show.py <<"X"\n{OURS}{SHOW}\nX\n'


def seen_in(path: str, words: str = "show.py") -> Case:
    """What a script sees with this PYTHONPATH."""
    return Case(f'{WRITE_SHOW}export A="{path}"; export PYTHONPATH="{path}"; $P python {words}', steps=0)


TREE = "$PYTHONPATH"
IMPORTS = {
    "sitecustomize": Case(f"{OWN_SITE.format('sitecustomize')}PYTHONPATH=$PWD/s:$PYTHONPATH $P python train.py"),
    **{
        f"a module {name}": Case(
            f"mkdir s; echo 'print(1)' > s/{name}.py; PYTHONPATH=$PWD/s:$PYTHONPATH $P python train.py"
        )
        for name in ("random", "hooks", "wire")
    },
    **{
        f"a module {name} beside the script": Case(f"echo 'print(1)' > {name}.py; $P python train.py")
        for name in ("random", "perfscope_toolkit")
    },
    **{f"PYTHONPATH={path}": seen_in(path) for path in (f"::/a:{TREE}:", f".:{TREE}::/a/../b:/a/:/a")},
    "-c": seen_in(TREE, "-c 'import show'"),
    "-m": seen_in(TREE, "-m show"),
    "-": seen_in(TREE, "- < show.py"),
}
#: A program that runs a command in a terminal of its own, types Control-C where that says so, and shows what it shows.
TERMINAL = """cat > t.py <<"X"
import os, pty, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
def read(fd):
    text = os.read(fd, 1024)
    if b"ready" in text:
        os.write(fd, b"\\x03")
    return text
print(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:], read)))
X
"""
SCRIPT = f"$P python -c 'import os, sys, signal; {CALL}"
STARTS = {
    "perfscope inside perfscope": Case(
        "$P ${P:+python -m perfscope profile -o $PWD/INNER --nvml-hz 0 --} python train.py; rm -rf INNER", steps=0
    ),
    "a script that starts itself again": Case(
        '$P python -c \'import os, sys, train; train.train(); A = os.environ.get("A"); os.environ["A"] = "1"; '
        "A or os.execv(sys.executable, sys.orig_argv)'",
        steps=None,
    ),
    "an excepthook": Case(f"{SCRIPT}sys.excepthook = lambda *a: print(a[0]); raise ValueError(1)'"),
    "atexit": Case(
        "$P python -c 'import atexit, train; atexit.register(print, 1); train.train(); atexit._clear()'", None
    ),
    "a handler": Case(f"{SCRIPT}signal.signal(15, lambda *a: print(a[0])); os.kill(os.getpid(), 15)'"),
    "asyncio": Case("$P python -c 'import asyncio, train\nasync def f(): train.train()\nasyncio.run(f())'"),
    **{words: Case(f"$P python {words} train.py") for words in ("-OO", "-W error", "-X dev", "-bb -u")},
    "a trace function": Case("$P python -c 'import sys, train; sys.settrace(lambda *a: None); train.train()'"),
    "a profile function": Case(
        f"{SCRIPT}f = lambda *a: None; sys.setprofile(f); train.train(); print(sys.getprofile() is f)'", 2 * STEPS
    ),
    "bytes that are not UTF-8": Case(
        "export NCCL_X=$'\\xff'; mkdir $'d\\xfe'; cd $'d\\xfe'; $P python ../train.py $'\\xff'"
    ),
    "a line break in a name": Case("cp train.py $'a\\nb.py'; $P python $'a\\nb.py'"),
    "a symbolic link to Python": Case("ln -s $(python -c 'import sys; print(sys.executable)') py; $P ./py train.py"),
    "a run that is deleted": Case(f'{SCRIPT}import shutil; shutil.rmtree("RUN", ignore_errors=True)\'', steps=0),
    "no permissions for new files": Case("umask 777; $P python train.py; umask 022; rm -rf RUN", steps=0),
    "a child without environment": Case(f'{SCRIPT}os.environ.clear(); os.system("env | wc -l")\''),
    "stop and go": Case(
        "$P python -c 'import os, time, train\npid = os.getpid()\n"
        "if not os.fork(): time.sleep(0.5); os.kill(pid, 18); os._exit(0)\nos.kill(pid, 19); train.train(); os.wait()'"
    ),
    "children that nobody awaits": Case("trap '' CHLD; $P sh -c 'exit 3'; echo $?", 0),
    "nohup": Case("nohup $P python train.py"),
    "timeout": Case(f"timeout 3 {SCRIPT}signal.pause()'; echo $?", None),
    "a terminal": Case(
        f"""{TERMINAL}python t.py sh -c "$P python -c '{CALL}print(os.isatty(0), os.isatty(1))' 2>e"; rm e t.py"""
    ),
    "Control-C in a terminal": Case(
        f"""{TERMINAL}python t.py sh -c "$P python -c '{CALL}print(\\"ready\\", flush=True); signal.pause()' 2>e"; """
        "grep -c KeyboardInterrupt e; rm e t.py"
    ),
    "a wall clock that jumps": Case(
        "$P python -c 'import itertools, time, train\njumps = itertools.cycle((0, 4 * 10**18, -(10**15)))\n"
        "time.time_ns = lambda: next(jumps); time.time = lambda: next(jumps) / 1e9; train.train()'"
    ),
    "an alarm": Case(f"perl -e 'alarm 3; exec @ARGV' {SCRIPT}signal.pause()'; echo $?", None),
    "a script without #!": Case("echo exit 7 > s; chmod +x s; $P ./s", 0),
    "no script": Case("$P python nothere.py; echo $?", 0),
}
CASES = {**STREAMS, **LIMITS, **SIGNALS, **IMPORTS, **STARTS}


@pytest.mark.parametrize("name", CASES)
def test_it_ends_as_without_perfscope(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    alone = run_alone(case.line, tmp_path / "alone")
    seen, captured = run_captured(case.line, tmp_path / "captured")
    assert seen == alone
    assert case.steps in (None, captured.steps)
    assert not case.says or any(case.says in line for line in captured.lines)
