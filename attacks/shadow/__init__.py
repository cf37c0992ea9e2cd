"""Surrogates of private extractors: a shadow federation, training, alignment, and the choice by shadow validation.

May import attacks/common/ and attacks/features/; imports no attack.
"""
