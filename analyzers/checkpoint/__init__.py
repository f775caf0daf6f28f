"""The size of a checkpoint by part, and the expected size."""
