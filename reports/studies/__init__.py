"""Studies, one TOML file each: cells and the reports made of them. `definition` reads them.

May import the specifications of privbench/ alone.
"""
