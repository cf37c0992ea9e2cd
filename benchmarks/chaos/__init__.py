"""The kill campaign: `python -m benchmarks.chaos`. Imports privbench and reports; nothing but tests imports it."""
