"""Turns other people's checkpoints into checkpoints for ./run. command.py reads the command line,
and convert.py does the work: a reader of sources/ gives a Model (model.py), families/ understands
its config, and checkpoint.py writes it with what tokenizers/, templates/ and quantize/ make."""
