"""What the engine needs from the world, as small Protocols; backends and adapters fulfil them."""
