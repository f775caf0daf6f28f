"""One page that shows a run or traces: a single HTML file that needs no network."""

from perfscope.page.build import analyze_for_page, build_page, describe_analysis
from perfscope.page.html import render

__all__ = ["analyze_for_page", "build_page", "describe_analysis", "render"]
