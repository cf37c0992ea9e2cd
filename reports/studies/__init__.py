"""Studies, one TOML file each: cells and the reports made of them. `definition` reads them.

May import privbench/ below cli/; imports no other folder of reports/.
"""
