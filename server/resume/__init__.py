"""Ids of a stream's events, by which another server, or the same one after a restart, goes on with the stream."""
