"""privbench: train a federated method to the end, attack exactly what its server sees, and score the result."""

__version__ = "0.1.0"
