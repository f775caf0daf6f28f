from perfscope.analyzers.findings import Findings as Findings
from perfscope.api.comparing import ComparedRuns as ComparedRuns
from perfscope.api.opened_run import OpenedRun as OpenedRun
from perfscope.api.opened_run import Page as Page
from perfscope.api.opened_run import open_run as open  # noqa: A004
from perfscope.api.results import Absent as Absent
from perfscope.api.results import Results as Results
from perfscope.errors import MissingInput as MissingInput
from perfscope.errors import PerfscopeError as PerfscopeError
from perfscope.errors import SourceError as SourceError
from perfscope.errors import UsageError as UsageError
from perfscope.result import Result as Result

__all__ = [
    "DISTRIBUTION",
    "Absent",
    "ComparedRuns",
    "Findings",
    "MissingInput",
    "OpenedRun",
    "Page",
    "PerfscopeError",
    "Result",
    "Results",
    "SourceError",
    "UsageError",
    "__version__",
    "open",
]

__version__: str
DISTRIBUTION: str
