"""What the logs of training runs say of their speed."""
