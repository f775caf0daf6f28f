"""What several analyzers need: interval sets, ranks, medians, and GPU samples joined with steps."""
