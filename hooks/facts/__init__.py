"""What is recorded of a run, a process, its model and its steps, without secrets."""
