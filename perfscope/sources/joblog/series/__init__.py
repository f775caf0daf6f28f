"""The iteration records of one source of step times: added, told from copies and restarts, kept or folded."""
