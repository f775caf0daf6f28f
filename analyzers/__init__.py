"""The features: one analyzer, one module, one public ``analyze()``. Pure functions from tables to frozen results."""
