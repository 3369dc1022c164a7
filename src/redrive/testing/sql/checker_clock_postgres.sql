SELECT {schema}.clock_us() AS now
