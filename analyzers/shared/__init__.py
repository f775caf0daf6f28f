"""What several analyzers need: sets of intervals, statistics, rank labels, steps, and GPU samples joined with steps."""
