"""Optional packages, and the programs that ``perfscope collect`` starts."""

from __future__ import annotations

import shutil
from importlib.metadata import PackageNotFoundError, version

from perfscope.doctor.check import Check, ok, warn

#: Part, distribution, and what to do where it is missing.
_OPTIONAL = (
    ("Reading traces", "isal", "pip install isal: traces are decompressed twice as fast"),
    ("TensorBoard", "torch-tb-profiler", "pip install 'perfscope-toolkit[tensorboard]', to open RUN/traces there"),
    ("Dask", "distributed", "pip install 'perfscope-toolkit[dask]', to read traces on several machines"),
    ("Rows of many ranks", "pyarrow", "pip install 'perfscope-toolkit[parquet]', to write them as parquet"),
)
_COLLECT_PROGRAMS = ("ssh", "tar", "find")


def check_packages() -> list[Check]:
    """Check the packages that make reading fast or open traces elsewhere."""
    checks = []
    for part, distribution, fix in _OPTIONAL:
        try:
            checks.append(ok(part, f"{distribution} {version(distribution)}"))
        except PackageNotFoundError:
            checks.append(warn(part, f"{distribution} is not installed", fix))
    return checks


def check_collect_programs() -> Check:
    """Check the programs with which `perfscope collect` reaches other hosts."""
    missing = [name for name in _COLLECT_PROGRAMS if shutil.which(name) is None]
    if missing:
        return warn("Collecting", f"not on PATH: {', '.join(missing)}", "apt-get install openssh-client tar findutils")
    return ok("Collecting", "ssh, tar and find are on PATH")
