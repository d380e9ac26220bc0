"""Chat for an unmodified `useChat`: the answer in hand as a stream of UI parts, whole after a refresh."""
