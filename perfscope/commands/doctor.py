"""``perfscope doctor``: what of perfscope works on this machine, and how to mend what does not."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfscope.checkup import hook_side, machine_side, torch_side
from perfscope.checkup.verdict import Check, Verdict
from perfscope.commands.options.common import FormatOption
from perfscope.errors import ExitCode
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.report import Column, Report, Section

SCHEMA = "perfscope/doctor/1"


def doctor(
    run_dir: Annotated[
        Path | None, typer.Option("-o", "--run-dir", help="Where runs will be.  [default: the working directory]")
    ] = None,
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Say what of perfscope works on this machine, and how to mend what does not.

    Everything is tried in processes of its own and nothing is left behind. The exit code is 4 where a part cannot work.
    """
    checks = _examine(_nearest(run_dir or Path()))
    failed = [check for check in checks if check.verdict is Verdict.FAIL]
    return Outcome(
        _report(checks),
        format,
        notes=tuple(f"{check.part}: {check.found}: {check.mend}" for check in failed),
        exit_code=ExitCode.DAMAGED_INPUT if failed else ExitCode.OK,
    )


def _examine(folder: Path) -> list[Check]:
    nvml, gpus = machine_side.check_nvml()
    return [
        torch_side.check_python(),
        *torch_side.check_torch(gpus=gpus),
        *hook_side.check_hook(),
        hook_side.check_launchers(),
        nvml,
        machine_side.check_other_profilers(),
        machine_side.check_permissions(gpus),
        machine_side.check_disk(folder),
        *machine_side.check_libraries(),
        machine_side.check_collecting(),
    ]


def _nearest(folder: Path) -> Path:
    """The folder, or the first one above it that exists."""
    absolute = folder.absolute()
    return next(one for one in (absolute, *absolute.parents) if one.is_dir())


def _report(checks: list[Check]) -> Report:
    counts = {verdict: sum(check.verdict is verdict for check in checks) for verdict in Verdict}
    return Report(
        "What works here",
        {
            "schema": SCHEMA,
            **{str(verdict): count for verdict, count in counts.items()},
            "checks": [
                {"part": one.part, "verdict": str(one.verdict), "found": one.found, "mend": one.mend or None}
                for one in checks
            ],
        },
        (
            Section(
                "Parts",
                (Column("Part"), Column("Verdict"), Column("Found"), Column("To mend")),
                tuple((one.part, str(one.verdict), one.found, one.mend) for one in checks),
                notes=(", ".join(f"{count} {verdict}" for verdict, count in counts.items()) + ".",),
            ),
        ),
    )
