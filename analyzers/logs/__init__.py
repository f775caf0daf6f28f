"""The speed of training runs by their logs."""
