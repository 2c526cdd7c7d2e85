"""Files that are whole or not there, whenever a process dies or a disk is full."""

import os
import secrets
from pathlib import Path


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file aside and put it into place at once; what was there before stays until then.

    :param path: the file.
    :param content: all of it.
    :raises OSError: it could not be written, and nothing has changed.
    """
    target = Path(path)
    aside = target.with_name(f"{target.name}.new-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with aside.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, target)
    finally:
        aside.unlink(missing_ok=True)
