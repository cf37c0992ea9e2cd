"""Scores of reconstructed images and the statistics over victims. Nothing else reads the truth.

May import data/ and what stands below it; knows no method and no attack.
"""
