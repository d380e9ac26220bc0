"""AG-UI over the same sessions, for CopilotKit and other front ends."""
