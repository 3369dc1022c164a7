SELECT disposition, generation, fence FROM delivery_state WHERE seq = ?1
