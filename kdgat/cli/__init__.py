"""The command `kdgat`: one module per group of commands, each imported only when it is asked for.

In: a command line. Out: a table, a file or a run, and one line for a user's mistake. Commands check and show; what they
do is done by the packages below, and `kdgat stage run` starts with the training dependencies alone. Read `main.py`
first, which finds the group, then `train.py`.
"""
