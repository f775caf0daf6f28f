"""The history of the device's allocator during a window, and at an out-of-memory error."""
