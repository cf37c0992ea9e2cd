"""Scores of reconstructed images and the statistics over victims. Nothing else reads the truth.

May import base modules alone.
"""
