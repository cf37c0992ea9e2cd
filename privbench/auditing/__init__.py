"""An audit of a user's own torch module: it reads what a server received, and writes what every applicable attack reconstructs.

The module comes from the caller's code, never from a file. May import all but cli/ and api.py; names no attack, no defence.
"""
