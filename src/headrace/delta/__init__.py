"""The Delta protocol: the log, its actions, schemas, features and data files. Nothing here knows pipelines."""
