"""perfscope: where did the time of a training run go, and can the number be trusted?

::

    import perfscope

    run = perfscope.open("runs/2026-11-22")
    for finding in run.findings:
        print(finding.title, finding.advice)

The package is imported inside training jobs, so this file imports nothing: what ``perfscope/__init__.pyi`` names is
loaded when it is first used.
"""

__version__ = "0.1.0"

#: The name on the package index. Another project owns ``perfscope`` there and installs a module of the same name.
DISTRIBUTION = "perfscope-toolkit"

_PUBLIC = {
    "Absent": ("perfscope.api.results", "Absent"),
    "ComparedRuns": ("perfscope.api.comparing", "ComparedRuns"),
    "Findings": ("perfscope.analyzers.findings", "Findings"),
    "MissingInput": ("perfscope.errors", "MissingInput"),
    "OpenedRun": ("perfscope.api.opened_run", "OpenedRun"),
    "Page": ("perfscope.api.opened_run", "Page"),
    "PerfscopeError": ("perfscope.errors", "PerfscopeError"),
    "Result": ("perfscope.result", "Result"),
    "Results": ("perfscope.api.results", "Results"),
    "SourceError": ("perfscope.errors", "SourceError"),
    "UsageError": ("perfscope.errors", "UsageError"),
    "open": ("perfscope.api.opened_run", "open_run"),
}

__all__ = ["DISTRIBUTION", "__version__", *_PUBLIC]  # noqa: PLE0604 - its keys are strings


def __getattr__(name: str) -> object:
    """Load what is public when it is first used."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'perfscope' has no attribute {name!r}")
    module, attribute = _PUBLIC[name]
    value = globals()[name] = getattr(__import__(module, fromlist=(attribute,)), attribute)
    return value


def __dir__() -> list[str]:
    """Name what is public, too."""
    return sorted({*globals(), *_PUBLIC})
