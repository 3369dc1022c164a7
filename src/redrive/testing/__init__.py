"""What tests, demos and rehearsals need: a receiver that keeps evidence, and a checker that joins it to the ledger.

Nothing here is used by a worker. ``receiver`` runs as its own process and never reads the ledger.
"""
