"""Data that earlier versions have written, read by this one."""
