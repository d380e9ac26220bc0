"""What is asked of a session from outside its run: to begin, go back, answer, stop, be shown, be cleared away."""
