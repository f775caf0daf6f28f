"""What the strategies train: models in layers, their data, and the place of a process among the others."""
