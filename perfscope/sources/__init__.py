"""Readers: files in, typed tables out. The only place where the raw keys of a format are spelled."""
