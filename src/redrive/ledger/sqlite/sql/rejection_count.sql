INSERT INTO rejection (code, count) VALUES (?1, ?2) ON CONFLICT (code) DO UPDATE SET count = count + ?2
