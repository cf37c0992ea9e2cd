"""Records as reports need them: labels, grouping, intervals, comparisons, checks across cells, and the values that papers print.

May import privbench/records/ and privbench/scoring/; imports no table and no figure.
"""
