"""The one exception for what a user can get wrong."""


class UserError(Exception):
    """One sentence: what was wrong and what would work. Shown without a traceback, exit code 2."""
