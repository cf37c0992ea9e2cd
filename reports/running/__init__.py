"""Running a study: its forecast, its cells, its status, and the reports that are made of its records.

May import all of reports/ but documents/, and privbench/ below cli/.
"""
