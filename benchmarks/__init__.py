"""Measurements that a person runs: each prints its ratios as a markdown table."""
