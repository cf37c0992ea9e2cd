"""`python -m privbench` is the `privbench` command; a stop is noticed from here on, before the command itself is imported."""

import atexit
import sys
import traceback

from privbench.system import interrupts
from privbench.system.printable import lines


def main() -> None:
    """The console script: as `privbench.cli.main`, for a process that ends with it."""
    status = 1
    atexit.register(interrupts.keep_status)
    try:
        try:
            interrupts.listen()
            from privbench.cli.main import main as command

            command()
        except KeyboardInterrupt:
            interrupts.end()
        except Exception as error:  # noqa: BLE001 (as Python does, but for characters that a terminal obeys)
            print(lines("".join(traceback.format_exception(error))), end="", file=sys.stderr, flush=True)
            sys.exit(1)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    finally:
        interrupts.leave_at_once(status)


if __name__ == "__main__":
    main()
