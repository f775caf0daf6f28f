"""Who is late, and why: ``records`` tells it from the records of every step, ``traces`` from profiler windows.

``records`` is the analyzer ``late_ranks``: ``parts`` splits each step on the host, ``excesses`` compares the parts,
``lateness`` names ranks and causes, and ``devices`` compares GPUs. ``traces`` is the analyzer ``stragglers``: waits in
matched collectives, and ``compute_pace`` of the kernels.
"""
