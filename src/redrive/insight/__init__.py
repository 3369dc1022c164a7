"""Insight: what the ledger shows about itself as a whole."""
