"""Published tables whose cells are recomputed, and reports whose blocks are built from raw files.

``refresh`` recomputes cells in place, ``table_report`` beside the published ones; ``build`` builds the blocks that
``blocks`` reads, ``provenance`` names their files, and ``stale`` finds the cells that differ.
"""
