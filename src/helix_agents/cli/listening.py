"""A socket for a command that serves: taken before anything else is opened, and refused in one sentence."""

import socket

import click


def listen(command: str, host: str, port: int) -> socket.socket:
    """A socket that listens there; 0 takes a free port.

    Raises:
        click.ClickException: the address is not this machine's, or is taken.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as problem:
        # Python appends the address, which the message already contains.
        why = (problem.strerror or str(problem)).partition(" (while")[0]
        raise click.ClickException(
            f"{command} cannot listen on {host}:{port}: {why}. Choose another address or port."
        ) from None
