"""Cells whose attack states something of a client; one seed of a cell to its result on disk.

May import what privbench.execution may.
"""
