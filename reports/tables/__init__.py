"""Tables of records, each a pure function from records to one `Report`, which becomes Markdown, CSV, LaTeX, HTML and terminal text.

May import reports/records/ and what stands below it; imports no figure.
"""
