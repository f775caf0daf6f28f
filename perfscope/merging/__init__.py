"""One timeline of all ranks for viewers of traces, on one clock."""
