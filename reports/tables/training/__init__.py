"""Tables of training runs: accuracy, ablations, tasks, generators, and what clients sent.

May import reports/records/ and reports/tables/.
"""
