"""One typed JSON file per result: its schema, its checks, the folders it lies in, and how older records are read.

May import observation/ and what stands below it; knows no attack and no report.
"""
