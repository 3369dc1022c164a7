SELECT destination, count FROM receiver_duplicate
