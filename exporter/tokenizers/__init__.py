"""Tokenizers: the files that checkpoints have -> the `tokenizer.*` metadata of docs/format.md.
files.py finds the file."""
