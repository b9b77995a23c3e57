"""Training: the loop, its state, the learning rate schedule and checkpoints."""
