"""Federated training: rounds, the one optimiser loop over clients and seeds, checkpoints, evaluation.

May import methods/, data/, networks/ and base modules; a method's losses are written for one client, the axes over clients live
here.
"""
