"""What several analyzers measure by: steady-state steps, parts of time, intervals, statistics, readings of GPUs."""
