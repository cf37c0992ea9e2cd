"""One typed JSON file per result: its schema, its checks, the folders it lies in, and how older records are read.

May import observation/, training/, scoring/ and base modules; knows no attack and no report.
"""
