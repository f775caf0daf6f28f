"""Pipeline bubbles measured from traces."""
