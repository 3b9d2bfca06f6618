"""Bounds on connections and on what comes before a request is one: uvicorn's protocol with limits of our own."""
