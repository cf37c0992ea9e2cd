"""Parts of the ladder's page (reports/tables/ladder_summary.py): its columns, its sentences, its messages counted.

May import reports/records/ and reports/tables/ladder.py.
"""
