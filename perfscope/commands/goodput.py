"""The view of `perfscope analyze --only goodput`: one job, from its runs and logs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from perfscope.analyzers.goodput import Goodput, Life, account, find_lives, find_logged_lives
from perfscope.engine.places import FilePlaces, at_hand
from perfscope.errors import MissingInput, SourceError
from perfscope.sources.joblog import find_logs, read_moments
from perfscope.sources.joblog.files import is_log_name
from perfscope.sources.runs.folder import find_runs
from perfscope.sources.runs.run import read_run
from perfscope.sources.runs.stored import read_run_at


@contextmanager
def account_for(locations: Sequence[str]) -> Iterator[tuple[Goodput, tuple[str, ...], FilePlaces]]:
    """The goodput of one job, what could not be read, and where its logs lie now.

    Raises:
        SourceError: None of the runs and logs recorded a step.
    """
    lives: list[Life] = []
    damage: list[str] = []
    with at_hand([path for path in locations if not find_runs(path)], is_log_name) as places:
        others = iter(places.paths)
        for location in locations:
            folders = find_runs(location)
            for folder in folders:
                run = read_run_at(folder, partial(read_run, has_samples=False))
                damage += run.damage
                lives += find_lives(run)
            for log in [] if folders else find_logs([next(others)]):
                moments = read_moments(log)
                damage += moments.damage
                lives += find_logged_lives(moments)
        try:
            goodput = account(lives)
        except MissingInput as error:
            raise SourceError(locations[0], f"says nothing of goodput: {error}") from None
        yield goodput, tuple(damage), places
