"""What `delta`, `iceberg` and `jdbc` share: tables that are read and written through connectors of the user's Spark.

    session      the session of the run, and what its errors mean
    events       the stager: messages to typed rows in Parquet files
    frames       these files as a DataFrame: types brought together, the last state of each key
    tables       the publisher for formats whose tables are committed one by one, each with a marker
    chunks       a DataFrame to messages, made in Spark's tasks
    reading      the source for formats whose tables have versions

Nothing here imports PySpark: the session is given (`session.provide`), and what else is needed is asked for by name.
"""
