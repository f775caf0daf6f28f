"""What a checkpoint's bytes are for, and how many there should be."""
