"""Readers of other people's checkpoints: Hugging Face, GGUF and llama2.c, each to a Model."""
