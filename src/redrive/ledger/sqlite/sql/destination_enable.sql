UPDATE destination SET enabled = ?2, disabled_at = ?3, disabled_why = ?4, updated_at = ?5 WHERE destination_id = ?1
