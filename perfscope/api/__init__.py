"""perfscope in Python: ``perfscope.open(path)`` gives a run with typed results.

The command line is built on it. ``perfscope/__init__.pyi`` names what is public; it is loaded when it is first used,
because the package is imported inside training processes.
"""
