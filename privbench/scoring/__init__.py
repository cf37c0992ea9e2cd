"""Scores of reconstructed images, the statistics over victims, and metrics of classifiers. Nothing else reads the truth.

May import data/ and what stands below it; knows no method and no attack.
"""
