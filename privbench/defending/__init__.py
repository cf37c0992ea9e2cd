"""Several defences as one (composition), and what an attacker reads from the description of any (described).

May import privbench/registry.py and what stands below it, and privbench/defense.py.
"""
