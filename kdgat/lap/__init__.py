"""Linear assignment: exact solver, learned warm starts, progressive training by matrix size.

In: cost matrices, generated or from files (`instances`). Out: an exact solver (`solver`), networks whose duals make it
quicker and never wrong (`models`, trained by `training`), and what that saves, measured (`evaluation`). Who has
matrices and weights reads `api.py`; who trains reads `plan.py` first, then `stages.py`.
"""
