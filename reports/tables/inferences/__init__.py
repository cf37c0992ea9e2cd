"""Rows of single questions in the table of what else is learned.

May import what reports.tables may.
"""
