"""Model families, a file each or one for close kin; registry.py is the table of all. common.py,
experts.py, encoder.py and encoder_decoder.py hold what several of them share."""
