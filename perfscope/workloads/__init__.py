"""Small training loops that know nothing of perfscope: the demo and the benchmarks run them, tests too."""
