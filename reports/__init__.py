"""What is made of records: studies, tables and figures.

From top to bottom: running and documents, figures, tables, records, studies. Each folder may import those after it, and
privbench/ below cli/. Attacks and defences are named as text, never imported.
"""
