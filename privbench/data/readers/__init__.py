"""Readers of the files that data sets come in: where they lie, their checksums, their formats, their size as images.

May import the base modules of privbench/ alone; data sets import from here.
"""
