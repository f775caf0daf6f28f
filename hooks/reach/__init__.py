"""How the hooks get into a training process."""
