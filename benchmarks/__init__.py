"""Scripts that measure perfscope against peers and limits; each prints its ratios as a markdown table.

Beside them, ``processes`` measures commands, ``synthetic_trace`` makes a large trace, and ``code_statistics`` counts
functions, names and imports of the code itself.
"""
