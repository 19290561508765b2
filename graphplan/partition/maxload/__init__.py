"""Max-load: one micro-batch, one load a device, the classical problem with proven optima."""
