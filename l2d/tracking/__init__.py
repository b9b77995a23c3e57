"""Tracking: the run's folder, the console, and Weights & Biases behind one small interface."""
