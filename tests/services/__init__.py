"""Private PostgreSQL, pgbouncer and a fault-injecting proxy, for tests and benchmarks.

``postgres`` starts servers, ``pgbouncer`` poolers, ``proxy`` cuts connections at chosen messages. Everything
listens on loopback, on a port of its own, and ends with the process that started it, however that ends.
Nothing that already runs on the machine is used. What must be installed is in ``needs``.
"""
