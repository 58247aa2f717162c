"""From trained weights to decisions: scores, calibration without test labels, the default detector, metrics.

In: weights of a finished run, and windows of validation and test. Out: `results.json`, whose shape is `results.py`.
Validation windows alone decide what the detector is: no test window and no test label is read before it stands. Read
`stage.py` first, then `decision.py`; `metrics.py` and `calibration.py` are plain mathematics.
"""
