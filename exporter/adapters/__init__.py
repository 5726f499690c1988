"""Adapters: what fine-tuning has changed of a base model, merged into its tensors as they are read."""
