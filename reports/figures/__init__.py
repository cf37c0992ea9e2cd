"""Figures of records and reconstructions, each a pure function that returns a matplotlib figure or writes it.

May import reports/tables/, reports/records/ and what stands below them.
"""
