"""Surrogates of private extractors: a federation of the attacker's own, training, alignment, and the choice by shadow validation.

May import attacks/common/ and attacks/features/; never imports an attack.
"""
