"""A sweep on several machines: which training runs each of them has, and how their folders of results become one.

May import what privbench/execution/ may, and its files.
"""
