"""Logs of training jobs, one module a framework; ``read_log`` recognises which."""

from perfscope.sources.joblog.files import find_logs
from perfscope.sources.joblog.read import read_log

__all__ = ["find_logs", "read_log"]
