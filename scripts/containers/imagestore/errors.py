"""What a user is told in one line."""

import errno

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Refused(Exception):
    """Nothing was made; the message says why, in one line."""
