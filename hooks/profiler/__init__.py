"""Windows of torch.profiler, the names of modules in them, and the compression of their traces."""
