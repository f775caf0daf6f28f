"""Models from configuration files, presets, training logs and the records of runs."""
