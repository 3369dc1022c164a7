SELECT delivery_id FROM identity
