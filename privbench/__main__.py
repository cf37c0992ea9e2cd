"""`python -m privbench` is the `privbench` command."""

from privbench.cli import main

if __name__ == "__main__":
    main()
