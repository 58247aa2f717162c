"""Intrusion detection on the CAN bus: graphs of message windows, and networks that tell which of them are attacked.

In: recordings of CAN traffic (`recordings`). Out: trained models, a calibrated detector, its scores on test recordings.
The way of a recording is the order of the folders: `recordings`, `windows`, `virtual` (attacks injected into it),
`models`, `training`, `evaluation`, and `nightly` for retraining; `report` tells it, `simulation` makes data where none
are. Read `plan.py` first (which stages there are, and what each needs of the others), then `stages.py` (what each
runs).
"""
