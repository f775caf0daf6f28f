"""Models and the hardware that they are trained on: dimensions, parameters and peak rates."""
