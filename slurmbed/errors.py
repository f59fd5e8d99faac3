"""Errors of the package. Each has a reason and, where possible, a hint on what to do next."""


class SlurmbedError(Exception):
    """A failure with its reason and, where there is one, what to do next.

    Args:
        reason: one line: what was tried and what came back.
        hint: what to do next, one line.
        details: last lines of output or logs, shown below the reason.
    """

    def __init__(self, reason: str, hint: str = "", details: str = ""):
        self.reason, self.hint, self.details = reason, hint, details
        super().__init__("\n".join(part for part in (reason, details, hint) if part))


class UsageError(SlurmbedError):
    """Bad input: nothing was started."""


class CommandError(SlurmbedError):
    """A command that could not be run, failed, or ran past its time limit."""


class WaitTimeout(SlurmbedError):
    """A condition that did not come true in time."""


class NotReady(SlurmbedError):
    """A cluster that did not become ready."""


class JobFailed(SlurmbedError):
    """A job that ended in any other way than COMPLETED."""


class PlacementError(SlurmbedError):
    """Ranks that are not where Slurm says it put them."""
