"""Recovery: what an operator asks of deliveries and dead letters, and the decisions taken on them."""
