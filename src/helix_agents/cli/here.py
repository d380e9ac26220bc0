"""The folder that a command is typed in."""

import os


def is_folder_gone() -> bool:
    """Whether the folder has been deleted; nothing named relative to it can be found then."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False
