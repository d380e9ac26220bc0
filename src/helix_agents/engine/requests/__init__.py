"""Requests to a session from outside its run: start, rewind, answer, stop, show, clean up."""
