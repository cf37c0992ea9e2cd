"""`python -m privbench` is the `privbench` command; a stop is noticed from here on, before the command itself is imported."""

from privbench.system import interrupts


def main() -> None:
    """The console script: as `privbench.cli.main`, for a process that ends with it."""
    status = 1
    try:
        try:
            interrupts.listen()
            from privbench.cli.main import main as command

            command()
        except KeyboardInterrupt:
            interrupts.end()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    finally:
        interrupts.leave_at_once(status)


if __name__ == "__main__":
    main()
