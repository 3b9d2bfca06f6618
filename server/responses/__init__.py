"""/v1/responses: its endpoints, the output that they build, and the responses that are kept."""
