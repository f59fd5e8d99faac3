"""Amounts of memory, as a user writes them."""

import re


def parse_memory(text: str) -> int:
    """MiB of "2G", "512M" or "2048" (MiB when there is no unit).

    Raises:
        ValueError: it is none of these.
    """
    match = re.fullmatch(r"(\d+)([MG]?)(i?B)?", text.strip(), re.IGNORECASE)
    if not match or int(match[1]) == 0:
        raise ValueError(f"{text!r} is not an amount of memory: write 2048 (MiB), 512M or 2G")
    return int(match[1]) * (1024 if match[2].upper() == "G" else 1)
