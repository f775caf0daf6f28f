"""Which files are logs, and what their names tell."""
