"""Analyzers: pure functions from typed tables to frozen results.

Each module here, and the packages ``steps`` and ``cost``, is one analyzer, which ``analyze --only`` takes by this name.
The other packages hold what several analyzers share, and the calculations of single commands.
"""
