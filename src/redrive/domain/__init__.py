"""Pure rules: standard library only; no IO, no clock, no randomness (both are passed in)."""
