"""What one gradient says of the layers of an extractor, as equations: of LeNet-5, and of any chain of layers with an inverse.

LeNet-5's are solved by attacks/features/layerwise.py. May import attacks/common/; no attack is imported.
"""
