SELECT code, count FROM rejection ORDER BY code
