"""What filled the memory of each device: the allocator's history of a window, followed to its peak."""
