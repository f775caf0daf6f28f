"""Conventions, models, peaks and the commands that print them."""
