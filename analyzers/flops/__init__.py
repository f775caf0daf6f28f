"""TFLOPs, MFU and HFU by every convention."""
