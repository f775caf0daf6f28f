"""TFLOPs, MFU and HFU by every convention, and operations counted from the shapes in a trace."""
