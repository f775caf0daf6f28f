"""What the documentation site has besides the pages in docs/."""
