"""Training: the loop, where it is, its schedule and checkpoints, the device and the ranks."""
