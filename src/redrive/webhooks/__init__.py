"""Webhooks: publish and fan-out, destinations, signing, our own HTTP sender, the address guard, the outcome table."""
