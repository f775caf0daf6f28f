"""Each guide of CONTRIBUTING, followed to the letter in a copy of the tree."""
