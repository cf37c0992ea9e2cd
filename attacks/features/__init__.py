"""From a classifier's gradient to features and from features to images, in closed form or by descent.

May import attacks/common/; imports no attack.
"""
