"""Federated training: rounds, the one optimiser loop over clients and seeds, checkpoints, evaluation.

May import presets, spec, methods/, data/ and what stands below them. A method's losses are written for one client; the axes
over clients and seeds are added here.
"""
