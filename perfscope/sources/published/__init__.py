"""Published tables from Markdown and CSV files."""
