"""Published tables whose cells are recomputed, and reports whose blocks are built from raw files."""
