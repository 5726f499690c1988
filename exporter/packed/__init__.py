"""Checkpoints whose weights are already packed into few bits: what they stand for."""
