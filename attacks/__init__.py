"""One file per attack that a user can name; privbench/registry.py lists them. common/, features/, shadow/, crafted/ are shared.

May import privbench/execution/ and what stands below it, and other attacks; never defenses/ or reports/. Nothing here may name
the ground truth.
"""
