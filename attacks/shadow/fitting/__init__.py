"""Private extractors fitted to features that their clients' uploads show: of known images, of earlier rounds, of unknown images.

May import attacks/common/, attacks/features/ and attacks/shadow/; imports no attack.
"""
