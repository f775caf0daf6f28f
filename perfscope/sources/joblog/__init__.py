"""Logs of training jobs: ``read_log`` recognises the framework; ``formats`` holds a module for each.

``files`` finds the logs. ``reading`` cuts one into blocks of ``text``; ``repeats`` and ``splitting`` take out what need
not be read line by line. The ``rules`` of each ``log_format`` read the rest: what a line states goes into the
``content`` of the log, an iteration into one of its ``series``. ``assembly`` makes the table of these. Formats read the
records of long logs in ``bulk``, and have ``step_times`` for logs whose records state none.
"""

from perfscope.sources.joblog.files.log_files import find_logs
from perfscope.sources.joblog.reading import read_log, read_moments

__all__ = ["find_logs", "read_log", "read_moments"]
