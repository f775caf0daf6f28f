"""A running job, seen live: the ends of its files, a view for terminals, metrics for Prometheus."""
