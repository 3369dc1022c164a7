SELECT spec FROM policy WHERE version = ?1
