"""What the lines of one log state, collected while it is read: the series of records, set-up, saves, timers."""
