"""Ids of a stream's events, with which another server, or the same one after a restart, resumes the stream."""
