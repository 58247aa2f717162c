"""Intrusion detection on the CAN bus: graphs of message windows, and networks that tell which of them are attacked.

In: recordings of CAN traffic. Out: trained models, a calibrated detector, its scores on test recordings, its alarms.
Folders import downwards: `nightly` and `detection`, `report`, `evaluation`, `training`, `models`, `data`. Read
`plan.py` first (which stages there are, and what each needs of the others), then `stages.py` (what each runs).
"""
