"""The `privbench` command. Imports torch only when a command starts to work, so that --help answers at once."""

from __future__ import annotations

import errno
import sys
import traceback
from typing import Annotated, NoReturn

import typer
from typer.exceptions import TyperException

from privbench.cli import audit_command, run_commands, view_commands
from privbench.cli.flattening import Once
from privbench.errors import Interrupted, UserError
from privbench.system import console, interrupts
from privbench.system.printable import lines, one_line

# What is wrong with a path that a user typed.
PATHS = (errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES)

app = typer.Typer(
    name="privbench",
    no_args_is_help=True,
    # Plain: in a narrow terminal, rich's frames leave a column of twenty characters to the help of an option.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train a federated method to the end, attack exactly what its server sees, and score the result.\n\n"
    "\b\n"
    "Examples\n"
    "  privbench table                      a first look; --full: to publish\n"
    "  privbench study accuracy             the three papers' methods: accuracy and curves\n"
    "  privbench attack --method fedcg      the paper's attack and the strong one\n"
    "  privbench attack --method fedcg --attack ladder --round 0,1,2,5,best\n"
    "                                       the ladder of attacks, against the round\n"
    "  privbench attack --defense gaussian:0.001 --defense gaussian:0.1\n"
    "                                       a sweep: one table, one curve\n"
    "  privbench study ladder               the ladder of five methods\n"
    "  privbench report runs --html         all of it as one page to send\n"
    "  privbench audit --model mine:build --gradients seen.npz\n"
    "                                       a model of your own\n"
    "  privbench list attacks               what each attack must know\n",
)
data_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="markdown", help="Check or download the data sets that are not embedded."
)
app.add_typer(data_app, name="data")

for command in (run_commands.attack, run_commands.train, run_commands.search, run_commands.table, run_commands.study):
    app.command(cls=Once)(command)
app.command(cls=Once)(audit_command.audit)
app.command(cls=Once)(view_commands.grid)
app.command("partition", cls=Once)(view_commands.partition_)
app.command("list", cls=Once)(view_commands.list_)
app.command(cls=Once)(view_commands.show)
app.command(cls=Once)(view_commands.report)
app.command(cls=Once)(view_commands.compare)
app.command(cls=Once)(run_commands.reproduce)
app.command(cls=Once)(run_commands.repeat)
app.command(cls=Once)(run_commands.merge)
app.command(cls=Once)(view_commands.export)
data_app.command("check", cls=Once)(view_commands.data_check)
data_app.command("fetch", cls=Once)(view_commands.data_fetch)


@app.callback()
def options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the whole traceback of an error; may appear anywhere in a command.")
    ] = False,
) -> None:
    """What all commands share."""


def main() -> None:
    """Entry point: a user's mistake is one line and status 2, a stop (Ctrl-C, SIGTERM, SIGHUP) one line and status 130."""
    interrupts.listen()
    console.forgiving()
    debug = "--debug" in sys.argv[1:]
    words = _or_help([word for word in sys.argv[1:] if word != "--debug"])
    try:
        # The exit code of a command that ended early, else None.
        status = app(words, standalone_mode=False)
        # typer turns a stop into an exit code.
        interrupts.check()
    except (Interrupted, KeyboardInterrupt):
        interrupts.end()
    except Exception as error:
        # Whatever a stop was turned into on its way here, it was a stop.
        if interrupts.stop_signal():
            interrupts.end()
        if isinstance(error, UserError):
            if debug:
                print(lines("".join(traceback.format_exception(error))), end="", file=sys.stderr)
            _stop(str(error), 2)
        if isinstance(error, typer.Abort):
            _stop("aborted", interrupts.STATUS)
        if isinstance(error, TyperException):
            _stop(error.format_message(), 2)
        if isinstance(error, OSError) and error.errno in PATHS and not debug:
            _stop(f"cannot use {error.filename}: {error.strerror}", 2)
        raise
    else:
        sys.exit(status)


def _or_help(words: list[str]) -> list[str]:
    """Words as they are; of a group of commands by itself, with the option for its help."""
    return [*words, "--help"] if words in ([], ["data"]) else words


def _stop(line: str, status: int) -> NoReturn:
    print(f"privbench: {one_line(line)}", file=sys.stderr)
    sys.exit(status)
