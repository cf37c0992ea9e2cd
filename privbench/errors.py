"""The one exception a user may cause: its text states the rule, what came, and the way out."""

# The way out where what was written can be made again.
AGAIN = "remove it and run the same command again"


class UserError(Exception):
    """A mistake of the caller's; the command line prints it as one line and exits with status 2."""


class Damaged(UserError):
    """A file that privbench wrote and whose content is no longer what was written; what can be made again is."""


class Missing(UserError):
    """A file that is not where it should be."""


class Busy(Exception):
    """Work that another process is doing just now; the text says which process. It can be done, or found done, later."""


class AttackRefused(UserError):
    """An attack that cannot be made here: its needs are not met, or it says so itself. Other attacks may still be."""


class Interrupted(Exception):
    """Work was stopped on request (Ctrl-C); everything finished so far is on disk and resumable."""
