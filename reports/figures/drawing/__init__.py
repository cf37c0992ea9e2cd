"""What figures share: page sizes, fonts, line styles, labels at the ends of lines. No figure is drawn here.

May import reports/records/.
"""
