"""perfscope: where did the time of a training run go, and can the number be trusted?

The package is imported inside training jobs, so this file imports nothing.
"""

__version__ = "0.1.0"

#: The name on the package index. Another project owns ``perfscope`` there and installs a module of the same name.
DISTRIBUTION = "perfscope-toolkit"
