UPDATE clock SET now = ?1
