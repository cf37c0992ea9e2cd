"""One file per defence that a user can name; privbench/registry.py lists them. A defence changes what one client sends.

May import privbench/execution/ and what stands below it; never attacks/ or reports/. Nothing here may name the ground truth.
"""
