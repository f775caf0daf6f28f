"""Who is late, and why: ``records`` tells it from the records of every step, ``traces`` from profiler windows.

``records`` is the analyzer ``late_ranks``: ``lateness`` compares the parts of steps, and ``devices`` compares GPUs.
``traces`` is the analyzer ``stragglers``: waits in matched collectives, and the pace of the kernels.
"""
