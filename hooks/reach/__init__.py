"""How the hooks get into a training process: through launchers, through imports, or by a call in the script."""
