"""What bench/sparks.py runs in processes of their own."""
