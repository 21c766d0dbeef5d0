"""wirelag: how late is the network? Measured from packets that are already there."""
