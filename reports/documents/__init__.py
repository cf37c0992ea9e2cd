"""The generated blocks of README.md and docs/: each is rendered from committed records or from the classes themselves.

`make docs` writes them. May import reports/, but not reports/running/.
"""
