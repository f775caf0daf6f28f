"""Charts: a small grammar that says what a chart shows, and its drawing as SVG, in pages and in markdown reports."""
