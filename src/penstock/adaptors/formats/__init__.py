"""What files hold, wherever they lie: JSON lines, CSV and Parquet, read piece by piece and written whole.

`walks` goes through a file of any format; `folder` and `ledger` through many of them; the `partition` modules write
directories of them, each batch of rows once. The adaptors `file` and `s3` say where the bytes are.
"""
