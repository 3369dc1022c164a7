INSERT INTO policy (version, spec) VALUES (?1, ?2) ON CONFLICT (version) DO NOTHING
