"""A denoiser of the attacker's images in place of a share of the Gaussian prior, and means of draws of the posterior.

May import what attacks/features may, and attacks/features.
"""
