"""Logs of training jobs: ``read_log`` recognises the framework; ``formats`` holds a module for each."""

from perfscope.sources.joblog.files import find_logs
from perfscope.sources.joblog.reading import read_log

__all__ = ["find_logs", "read_log"]
