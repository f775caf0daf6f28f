"""One page that shows a run or traces: a single HTML file that needs no network.

``build_page(analysis)`` gives the HTML of ``read_for_page(paths)``, or of any other analysis; ``describe_analysis``
says what a page shows, and ``render`` writes that as HTML.
"""

from perfscope.page.build import analyze_for_page, build_page, describe_analysis, read_for_page
from perfscope.page.html import render

__all__ = ["analyze_for_page", "build_page", "describe_analysis", "read_for_page", "render"]
