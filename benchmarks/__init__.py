"""Scripts that measure perfscope against peers and limits; each prints its ratios as a markdown table.

``processes`` measures commands for them, and ``code_statistics`` counts the lines and names of the code itself.
"""
