"""What an agent may be given besides its tools: state that outlives it, and the vault that protects copies of it."""
