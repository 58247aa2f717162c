"""A simulated car: what its control units send, how the bus orders it, and what an attacker does to it.

In: a seed and a duration; no recording at all. Out: a labelled synthetic dataset (`kdgat data synth`), for tests and
for people without data. Unlike `kdgat.canbus.injection`, nothing here goes into training by itself. Read `synthetic.py`
first, then `vehicle.py`.
"""
