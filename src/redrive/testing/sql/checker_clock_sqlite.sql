SELECT now FROM {schema}.clock
