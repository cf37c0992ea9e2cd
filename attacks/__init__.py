"""One file per attack that a user can name; privbench/registry.py lists them. What they share lives in common/, features/, shadow/, crafted/.

May import privbench/execution/ and what stands below it, and other attacks; never defenses/ or reports/. Nothing here may name the ground
truth.
"""
