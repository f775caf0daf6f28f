"""How throughput grows with the number of GPUs: scaling studies, scaling laws, DLPerf's rules, and ZeRO stages."""
