"""Shadow clients of candidate domains, and what of an upload tells the domain of its images.

May import what attacks.shadow may.
"""
