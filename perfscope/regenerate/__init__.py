"""Files that are kept right: tables recomputed in place, blocks written again from raw files."""
