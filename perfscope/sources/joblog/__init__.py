"""Logs of training jobs: ``read_log`` recognises the framework; ``formats`` holds a module for each.

Blocks of ``text`` go to the rules of each ``log_format``. What a line states goes into the ``builder`` of the log,
an iteration into the ``records`` of its source, in the order of the file. ``resolve`` tells copies and restarts.
"""

from perfscope.sources.joblog.files import find_logs
from perfscope.sources.joblog.reading import read_log, read_log_saves, read_moments

__all__ = ["find_logs", "read_log", "read_log_saves", "read_moments"]
