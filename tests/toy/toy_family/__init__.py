"""A family in one folder: noisy points on a line in, its slope out. Read `family.py` first, then `stages.py`."""
