"""Readers of the files that data sets consist of: where they lie, their checksums, their formats, their size as images.

May import registry, types and what stands below them; data sets import from here.
"""
