"""What is kept of a training that stalls or fails: stacks, collectives, the order in which ranks ended."""
