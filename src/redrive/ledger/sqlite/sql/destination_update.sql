UPDATE destination SET scope = ?2, url = ?3, settings = ?4, updated_at = ?5 WHERE destination_id = ?1
