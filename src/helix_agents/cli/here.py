"""The folder that a command is typed in."""

import os


def is_folder_gone() -> bool:
    """Whether it was deleted meanwhile; whatever is named relative to it is then nowhere."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False
