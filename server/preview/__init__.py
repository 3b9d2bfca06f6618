"""Show the prompt of a request and predict its latency, without computing an answer."""
