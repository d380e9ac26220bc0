"""Chat for an unmodified `useChat`: streams the current answer as UI parts, complete even after a page refresh."""
