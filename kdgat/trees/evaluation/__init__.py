"""What a pretraining has learned, beside what is known without it.

In: test trees and weights. Out: growth and order beside their baselines (`pretext.py`), classes or numbers from few
labels beside morphometrics, GIN and an untrained encoder (`downstream.py`), in one file per seed (`results.py`).
"""
