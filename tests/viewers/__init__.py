"""A run's traces open as they are in TensorBoard, HTA and Perfetto."""
