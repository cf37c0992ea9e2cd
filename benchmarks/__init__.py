"""Measurements of speed, of tuning and of reliability: `make bench`, `make chaos`, and the searches behind the defaults.

The top layer: may import everything, and nothing but tests imports it.
"""
