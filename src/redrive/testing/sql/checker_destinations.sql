SELECT destination_id, settings FROM destination
