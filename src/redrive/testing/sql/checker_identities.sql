SELECT delivery_id FROM {schema}.identity
