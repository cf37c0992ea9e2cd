"""What lies in a folder of results, as one report that can be sent, and what changed between two of them.

May import all of reports/ but running/ and documents/, and privbench/ below cli/.
"""
