"""Files that stay right: published tables recomputed in place, and reports built again from raw files."""
