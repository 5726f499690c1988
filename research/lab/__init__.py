"""The laboratory: variants of attention, trained alike and measured. `make lab` runs:

    laboratory.py    trains and measures what results/ lacks, by a plan (plan.py)
    report.py        makes the tables (tables.py) and pictures (pictures.py) of docs/variants.md

The models: variants.py has their shapes, texts.py what they read, copying.py the copy task,
train.py how they learn. The numbers: measure.py asks ./run, results.py keeps what was measured,
intervals.py says what may be concluded.
"""
