"""Text that repeats itself: it is found as bytes, read a few times, and counted for the rest."""
