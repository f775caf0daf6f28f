"""A whole job, replayed from its operations, and what its stragglers cost."""
