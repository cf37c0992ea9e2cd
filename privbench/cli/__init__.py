"""The `privbench` command: reads options, runs cells, prints and writes what reports make of them.

The composition root: it may import everything, and nothing but api.py and __main__.py imports it.
"""
