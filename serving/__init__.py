"""The server: a page and an interface for programs; translates many requests at a time."""
