"""Records as reports need them: labels, grouping, intervals, comparisons, checks across cells, and the values that papers print.

May import reports/studies/ and privbench/ below cli/; imports no table and no figure.
"""
