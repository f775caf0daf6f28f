"""The text of a log as bytes: blocks of whole lines, anchors and lines that are alike, labels, dates and numbers."""
