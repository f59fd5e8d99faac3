"""What a user is told in one line."""


class Refused(Exception):
    """Nothing was made; the message says why, in one line."""
