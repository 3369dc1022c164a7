SELECT version, spec FROM policy
