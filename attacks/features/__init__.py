"""From gradients to features and from features to images: closed forms, equations, descents, trained decoders.

May import attacks/common/; imports no attack.
"""
