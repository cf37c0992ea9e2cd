"""One file per federated algorithm: what it shares, and its stages. `base` is the form that all of them have.

May import data/ and what stands below it; equations are written for one client and one mini-batch.
"""
