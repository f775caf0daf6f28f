"""Whether the figures of a published table follow from each other."""
