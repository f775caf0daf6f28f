"""What several analyzers measure by: steady-state steps, parts of time, statistics, readings of GPUs."""
