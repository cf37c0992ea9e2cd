"""The version of privbench, which records and observations carry."""

__version__ = "0.1.0"
