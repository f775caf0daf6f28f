"""``perfscope postmortem``: why a training stalled or failed, from what its ranks left behind."""

from __future__ import annotations

from typing import Annotated

import typer

from perfscope.analyzers.postmortem.diagnosis import Summary, diagnose
from perfscope.commands.options import FormatOption, outcome_of
from perfscope.engine.places import at_hand
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.sources.postmortem import is_read, read_post_mortem


def postmortem(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN|DUMPS", help="A run, or a folder of the Flight Recorder's dumps, one a rank: a path or a URL."
        ),
    ],
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Say which rank a stalled or failed training was stopped by, in which collective or line of code, and why.

    No code of a dump runs. A running job can be asked, too: its ranks keep stacks as soon as they stall.
    """
    with at_hand([source], is_read) as places:
        evidence = read_post_mortem(places.paths[0])
        report = places.report(Summary(evidence, diagnose(evidence)).report())
    return outcome_of(report, format)
