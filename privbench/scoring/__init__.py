"""Scores of reconstructed images, the statistics over victims, and metrics of classifiers.

May import data/ and what stands below it; knows no method and no attack.
"""
