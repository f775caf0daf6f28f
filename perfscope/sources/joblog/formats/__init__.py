"""The log formats, one module or package each; `registry` lists them."""
