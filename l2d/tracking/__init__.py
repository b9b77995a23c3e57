"""Tracking: the run's folder, the console, and trackers (W&B, MLflow, TensorBoard) behind one small interface."""
