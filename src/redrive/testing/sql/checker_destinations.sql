SELECT destination_id, settings FROM {schema}.destination
