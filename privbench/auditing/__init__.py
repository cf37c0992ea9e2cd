"""An audit of a user's own torch module: what a server received in, what every attack that fits makes of it out.

The module comes from the caller's code, never from a file. May import all but cli/ and api.py; names no attack, no defence.
"""
