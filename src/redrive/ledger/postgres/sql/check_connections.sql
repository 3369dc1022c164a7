-- Connections that may be, and that are: of the server, of this database, of this user. A limit of -1 is none.
SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int,
       (SELECT sum(s.numbackends)::int FROM pg_stat_database s),
       (SELECT d.datconnlimit FROM pg_database d WHERE d.datname = current_database()),
       (SELECT s.numbackends FROM pg_stat_database s WHERE s.datname = current_database()),
       (SELECT r.rolconnlimit FROM pg_roles r WHERE r.rolname = current_user),
       (SELECT count(*)::int FROM pg_stat_activity a WHERE a.usename = current_user)
