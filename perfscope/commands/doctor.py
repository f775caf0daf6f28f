"""``perfscope doctor``: what works on this machine, and how to fix what does not."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import typer

from perfscope.commands.options.common import FormatOption
from perfscope.doctor import (
    Check,
    Verdict,
    check_collect_programs,
    check_disk,
    check_hook,
    check_launchers,
    check_nvml,
    check_other_profilers,
    check_packages,
    check_permissions,
    check_python,
    check_torch,
)
from perfscope.errors import ExitCode
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.report import Column, Report, Section

_SCHEMA = "perfscope/doctor/1"


def doctor(
    run_dir: Annotated[
        Path | None,
        typer.Option("-o", "--run-dir", help="Folder for runs; its disk is checked.", show_default="."),
    ] = None,
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Check what works on this machine, and say how to fix what does not.

    Each check runs in a process of its own and leaves nothing behind. Exit status 4: a part cannot work.
    """
    checks = _run_checks(_nearest_folder(run_dir or Path()))
    failed = [check for check in checks if check.verdict is Verdict.FAIL]
    return Outcome(
        _report(checks),
        format,
        notes=tuple(f"{check.part}: {check.finding}: {check.fix}" for check in failed),
        exit_code=ExitCode.DAMAGED_INPUT if failed else ExitCode.OK,
    )


def _run_checks(folder: Path) -> list[Check]:
    with ThreadPoolExecutor() as pool:  # torch is loaded in two processes, which takes seconds
        hook_checks = pool.submit(check_hook)
        nvml_check, gpus = check_nvml()
        torch_checks = check_torch(gpus=gpus)
    return [
        check_python(),
        *torch_checks,
        *hook_checks.result(),
        check_launchers(),
        nvml_check,
        check_other_profilers(),
        check_permissions(gpus),
        check_disk(folder),
        *check_packages(),
        check_collect_programs(),
    ]


def _nearest_folder(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    absolute = folder.absolute()
    return next(candidate for candidate in (absolute, *absolute.parents) if candidate.is_dir())


def _report(checks: Sequence[Check]) -> Report:
    counts = {verdict: sum(check.verdict is verdict for check in checks) for verdict in Verdict}
    return Report(
        "Environment check",
        {
            "schema": _SCHEMA,
            **{str(verdict): count for verdict, count in counts.items()},
            "checks": [
                {
                    "part": check.part,
                    "verdict": str(check.verdict),
                    "found": check.finding,
                    "mend": check.fix or None,
                }
                for check in checks
            ],
        },
        (
            Section(
                "Checks",
                (Column("Part"), Column("Verdict"), Column("Finding"), Column("Fix")),
                tuple((check.part, str(check.verdict), check.finding, check.fix) for check in checks),
                notes=(", ".join(f"{count} {verdict}" for verdict, count in counts.items()) + ".",),
            ),
        ),
    )
