"""l2d bench: every method on every task under one protocol, judged by its excess over the best achievable."""
