SELECT version, spec FROM {schema}.policy
