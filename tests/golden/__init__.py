"""Golden masters: what the commands answer for the fixtures; a changed answer is a decision that a commit names."""
