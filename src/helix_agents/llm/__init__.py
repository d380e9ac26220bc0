"""Models: adapters over the providers' own libraries, and scripted stand-ins for tests."""
