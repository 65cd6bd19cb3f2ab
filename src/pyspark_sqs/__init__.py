"""Spark looks for packages named pyspark_…, so that `format("sqs")` works wherever Semel is installed."""

from semel.spark.source.datasource import SqsSource as DefaultSource

__all__ = ["DefaultSource"]
