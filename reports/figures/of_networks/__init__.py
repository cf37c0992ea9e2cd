"""Figures that need the networks of runs and their images on disk, besides records.

May import reports/figures/drawing/, reports/tables/, reports/records/ and what stands below them.
"""
