"""Windows of torch.profiler, and the names of modules in their traces."""
