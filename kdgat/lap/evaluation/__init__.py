"""What a warm start saves, and whether every answer is right: methods timed side by side on the same instances.

In: weights of the stages of a run, and a test store. Out: `evaluation.json` for one seed and `results.json` for all.
Every answer is checked against a certificate; times are taken so that a busy machine does not decide. Read `stage.py`
first, then `measurement.py` and `baselines.py`; the shape of the results is `results.py`.
"""
