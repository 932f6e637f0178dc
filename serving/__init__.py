"""The page and the interface for programs: requests in, translations out, many at a time."""
