"""Weights in few bits: panels of f32, bf16, q8 and q4, what rounding costs, and calibration."""
