"""The worker: claims what it can start at once, runs it, closes in batches, keeps its leases, reaps, drains."""
