"""What an agent can have besides its tools: state that outlives it, and the vault that protects copies of it."""
