"""Many records at once: lines of one shape, and their figures as columns of numbers."""
