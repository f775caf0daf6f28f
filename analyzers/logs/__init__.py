"""Step time, throughput and set-up of a training run, from its log."""
