"""Learned warm starts for linear assignment, and progressive training by matrix size.

In: cost matrices, generated or from files (`instances`). Out: networks whose duals make the solver (`kdgat.assignment`)
quicker and never wrong (`models`, trained by `training`), and what that saves, measured (`evaluation`). Who has
matrices and weights reads `api.py`; who trains reads `plan.py` first, then `stages.py`.
"""
