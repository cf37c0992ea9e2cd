"""Features of single images separated from a batch: in a row space by descent, and in closed form behind ReLUs.

May import attacks/common/; imports no attack.
"""
