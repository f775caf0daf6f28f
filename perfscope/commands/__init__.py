"""One command, one module. Each reads its options, calls sources, analyzers and a renderer, and returns an Outcome."""
