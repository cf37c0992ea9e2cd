"""Classifiers that an active server sends, how their gradients are read, and a dry run on the server's own images.

May import attacks/common/, attacks/features/ and attacks/shadow/; imports no attack.
"""
