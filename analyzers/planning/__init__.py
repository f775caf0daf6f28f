"""What a training run will take: memory and time."""
