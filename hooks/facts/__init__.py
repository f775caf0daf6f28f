"""What is recorded of a process, its model and its steps."""
